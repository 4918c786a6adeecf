# The CUDA kernels: JAX_W4A8_CUDA=1 asks for them, 0 does without; left out, they are built where nvcc and CUTLASS's
# headers (pip install --no-deps nvidia-cutlass) are.

find_program(NVCC nvcc)
ask_python(CUTLASS "import importlib.util as u, pathlib; s = u.find_spec('cutlass_library'); \
print(pathlib.Path(s.origin).parent / 'source' if s else '')")

set(wanted "$ENV{JAX_W4A8_CUDA}")
if(NOT wanted MATCHES "^(0|1|)$")
  message(FATAL_ERROR "JAX_W4A8_CUDA: expected 0, 1 or nothing, got '${wanted}'")
endif()
if(wanted STREQUAL "1")
  if(NOT NVCC)
    message(FATAL_ERROR "JAX_W4A8_CUDA=1 needs nvcc (CUDA 13.0 or newer) on PATH")
  endif()
  if(NOT CUTLASS)
    message(FATAL_ERROR "JAX_W4A8_CUDA=1 needs CUTLASS's headers: pip install --no-deps nvidia-cutlass==4.2.0.0")
  endif()
endif()
if(wanted STREQUAL "0" OR NOT NVCC OR NOT CUTLASS)
  message(STATUS "CUDA kernels: not built")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${NVCC}")
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_ARCHITECTURES OFF)  # each extension module has its own, below
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)

# cuda_module(name architecture): jax_w4a8.<name> of the lists in csrc/sources.bzl that bear its name. The PTX is kept
# beside the machine code: the tests execute it.
function(cuda_module name architecture)
  string(TOUPPER "${name}" upper)
  read_sources(sources "CUDA_SOURCES + ${upper}_SOURCES")
  nanobind_add_module(_${name} STABLE_ABI NB_STATIC ${FFI_SOURCES} ${sources})
  target_link_libraries(_${name} PRIVATE ffi)
  target_include_directories(_${name} SYSTEM PRIVATE "${CUTLASS}/include" "${CUTLASS}/tools/util/include"
    ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_compile_options(_${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_${architecture},code=[sm_${architecture}$<COMMA>compute_${architecture}]>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--expt-relaxed-constexpr -diag-suppress 20012>")
  install(TARGETS _${name} LIBRARY DESTINATION jax_w4a8)
endfunction()

# 100f: B200 and B300, the family of compute capability 10.
cuda_module(sm100 100f)

# The same objects against a stand-in for the CUDA runtime, for the tests; never installed.
add_library(sm100_standin SHARED
  tests/sm100/fake_cudart/fake_cudart.cc
  tests/sm100/fake_cudart/fake_xla.cc
  $<FILTER:$<TARGET_OBJECTS:_sm100>,EXCLUDE,module.cc>)
target_link_libraries(sm100_standin PRIVATE ffi)
target_include_directories(sm100_standin SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_link_options(sm100_standin PRIVATE -Wl,-Bsymbolic -Wl,-z,defs)
set_target_properties(sm100_standin PROPERTIES LINKER_LANGUAGE CXX)

cuda_module(sm90 90a)

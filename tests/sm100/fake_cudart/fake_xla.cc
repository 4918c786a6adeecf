// XLA's side of a custom call: a call frame, and the functions that a handler asks it with.
#include <algorithm>
#include <string>
#include <vector>

#include "csrc/sm100/handlers.h"
#include "tests/sm100/fake_cudart/fake_cudart.h"
#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};

struct XLA_FFI_ExecutionContext {
  int device;
};

namespace {

XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->errc, args->message};
}
void error_message(XLA_FFI_Error_GetMessage_Args* args) {
  args->message = args->error->message.c_str();
}
void destroy_error(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

XLA_FFI_Error* stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = nullptr;
  return nullptr;
}
XLA_FFI_Error* device_ordinal(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = args->ctx->device;
  return nullptr;
}

XLA_FFI_Api api() {
  XLA_FFI_Api api = {};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                     XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = create_error;
  api.XLA_FFI_Error_GetMessage = error_message;
  api.XLA_FFI_Error_Destroy = destroy_error;
  api.XLA_FFI_Stream_Get = stream;
  api.XLA_FFI_DeviceOrdinal_Get = device_ordinal;
  return api;
}

struct Buffers {
  std::vector<XLA_FFI_Buffer> buffers;
  std::vector<void*> pointers;

  Buffers(const FakeBuffer* fakes, int count) {
    for (int i = 0; i < count; ++i) {
      buffers.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr,
                         static_cast<XLA_FFI_DataType>(fakes[i].type), fakes[i].data, fakes[i].rank,
                         const_cast<int64_t*>(fakes[i].dims)});
    }
    for (XLA_FFI_Buffer& buffer : buffers) pointers.push_back(&buffer);
  }
};

XLA_FFI_Handler* handler(const char* target) { return jax_w4a8::sm100::targets().at(target); }

const char* keep(XLA_FFI_Error* error) {
  static thread_local std::string message;
  if (error == nullptr) return nullptr;
  message = std::to_string(error->code) + ": " + error->message;
  delete error;
  return message.c_str();
}

}  // namespace

extern "C" {

const char* fake_xla_call(const char* target, int device, const FakeBuffer* arguments,
                          int argument_count, const FakeBuffer* results, int result_count,
                          const FakeAttribute* attributes, int attribute_count) {
  const XLA_FFI_Api functions = api();
  XLA_FFI_ExecutionContext context = {device};
  Buffers args(arguments, argument_count), rets(results, result_count);
  std::vector<XLA_FFI_ArgType> arg_types(argument_count, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(result_count, XLA_FFI_RetType_BUFFER);

  // XLA hands attributes over in the order of their names.
  std::vector<FakeAttribute> sorted(attributes, attributes + attribute_count);
  std::sort(sorted.begin(), sorted.end(), [](const FakeAttribute& a, const FakeAttribute& b) {
    return std::string(a.name) < b.name;
  });
  std::vector<XLA_FFI_AttrType> attr_types;
  std::vector<XLA_FFI_ByteSpan> names, texts;
  std::vector<XLA_FFI_Scalar> scalars;
  for (FakeAttribute& attribute : sorted) {
    const std::string text = attribute.text == nullptr ? "" : attribute.text;
    attr_types.push_back(attribute.text == nullptr ? XLA_FFI_AttrType_SCALAR
                                                   : XLA_FFI_AttrType_STRING);
    names.push_back({attribute.name, std::string(attribute.name).size()});
    texts.push_back({attribute.text, text.size()});
    scalars.push_back({XLA_FFI_DataType_S64, &attribute.number});
  }
  std::vector<XLA_FFI_ByteSpan*> name_pointers;
  std::vector<void*> attr_pointers;
  for (size_t i = 0; i < sorted.size(); ++i) {
    name_pointers.push_back(&names[i]);
    attr_pointers.push_back(sorted[i].text == nullptr ? static_cast<void*>(&scalars[i])
                                                      : &texts[i]);
  }

  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &functions;
  frame.ctx = &context;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, argument_count, arg_types.data(),
                args.pointers.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, result_count, ret_types.data(),
                rets.pointers.data()};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,
                 attribute_count,           attr_types.data(),
                 name_pointers.data(),      attr_pointers.data()};
  return keep(handler(target)(&frame));
}

bool fake_xla_command_buffer_compatible(const char* target) {
  XLA_FFI_Metadata metadata = {};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata,
                              nullptr};
  extension.metadata = &metadata;
  const XLA_FFI_Api functions = api();
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = &functions;
  if (keep(handler(target)(&frame)) != nullptr) return false;
  return (metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) != 0;
}
}

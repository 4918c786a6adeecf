"""A repository made of the chosen interpreter and of the headers in its site-packages."""

def _interpreter(ctx):
    """The interpreter that the environment asks for, as an absolute path; a venv's link is kept as it is."""
    chosen = ctx.os.environ.get("JAX_W4A8_PYTHON")
    if not chosen and ctx.os.environ.get("VIRTUAL_ENV"):
        chosen = ctx.os.environ["VIRTUAL_ENV"] + "/bin/python"
    chosen = chosen or "python3"
    if "/" not in chosen:
        found = ctx.which(chosen)
        if not found:
            fail("%s is not on PATH: set JAX_W4A8_PYTHON to a Python with JAX" % chosen)
        return str(found)
    if not chosen.startswith("/"):
        chosen = "%s/%s" % (ctx.path(Label("//:WORKSPACE")).dirname, chosen)
    return chosen

def _describe(ctx, interpreter):
    script = ctx.path(Label("//bazel:describe_python.py"))
    result = ctx.execute([interpreter, script])
    if result.return_code != 0:
        fail("%s does not serve to build jax_w4a8: %s" % (interpreter, result.stderr))
    return json.decode(result.stdout)

def _python_environment(ctx):
    interpreter = _interpreter(ctx)
    described = _describe(ctx, interpreter)
    for folder, target in described["headers"].items():
        ctx.symlink(target, folder)
    ctx.symlink(Label("//bazel:python_environment.BUILD"), "BUILD.bazel")
    ctx.file("interpreter.bzl", "INTERPRETER = %r\n" % interpreter)
    ctx.file("interpreter_site.py", "SITE_PACKAGES = %s\n" % described["site_packages"])

python_environment = repository_rule(
    implementation = _python_environment,
    environ = [
        "JAX_W4A8_PYTHON",
        "PATH",
        "VIRTUAL_ENV",
    ],
    # Looked at again whenever the server starts: a `pip install --upgrade` leaves no other trace.
    local = True,
    doc = "Interpreter: $JAX_W4A8_PYTHON, else $VIRTUAL_ENV/bin/python, else python3.",
)

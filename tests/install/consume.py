"""Builds programs against an installed Tersum and runs them.

usage: consume.py --prefix DIR ... layout | tools | find_package c|cpp | pkg_config c|cpp
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = ["tersum.h", "c_base.h", "c_communicator.h", "c_exchange.h", "tersum.hpp", "communicator.hpp",
           "compressor.hpp", "config.hpp", "error.hpp", "gradient_exchange.hpp", "stage.hpp", "types.hpp",
           "version.hpp", "work.hpp"]


def call(command, **more):
    """Runs a command; its output ends the test if it fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERSUM_")}
    environment.update(more)
    print("+", *command, flush=True)
    process = subprocess.run([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
    print(process.stdout, flush=True)
    if process.returncode != 0:
        sys.exit(f"exit code {process.returncode}: {command}")
    return process.stdout


def flags(options):
    """Compiler flags for a sanitized library: the program must load the sanitizer first."""
    return [f"-fsanitize={options.sanitize}"] if options.sanitize else []


def run_program(options, program, language):
    """The C program is a job of two ranks; the C++ program is one of its own."""
    environment = {"LD_LIBRARY_PATH": str(options.prefix / options.libdir)}
    if language == "c":
        tersum_run = options.prefix / options.bindir / "tersum-run"
        output = call([tersum_run, "-n", "2", "--", program], **environment)
        for rank in (0, 1):
            if f"[{rank}] rank {rank} of 2: all is well" not in output:
                sys.exit(f"rank {rank} has not said that all is well")
    elif "all is well" not in call([program], **environment):
        sys.exit("the program has not said that all is well")


def find_package(options, language):
    """By CMake, with nothing known but the prefix."""
    build = options.work / f"find_package_{language}"
    shutil.rmtree(build, ignore_errors=True)
    variable = "CMAKE_C_FLAGS" if language == "c" else "CMAKE_CXX_FLAGS"
    call([options.cmake, "-S", HERE / language, "-B", build, "-G", options.generator,
          f"-DCMAKE_PREFIX_PATH={options.prefix}", f"-DCMAKE_C_COMPILER={options.cc}",
          f"-DCMAKE_CXX_COMPILER={options.cxx}", f"-D{variable}={' '.join(flags(options))}"])
    call([options.cmake, "--build", build])
    run_program(options, build / "program", language)


def pkg_config(options, language):
    """By pkg-config and the compiler alone."""
    build = options.work / f"pkg_config_{language}"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    path = str(options.prefix / options.libdir / "pkgconfig")
    words = call(["pkg-config", "--cflags", "--libs", "tersum"], PKG_CONFIG_PATH=path).split()
    if f"-I{options.prefix.resolve()}/include" not in resolved(words):
        sys.exit(f"pkg-config does not point into {options.prefix}: {words}")
    source = HERE / language / ("program.c" if language == "c" else "program.cpp")
    compiler = [options.cc, "-std=c99"] if language == "c" else [options.cxx, "-std=c++20"]
    call([*compiler, "-Wall", "-Wextra", "-Werror", *flags(options), source, "-o", build / "program", *words])
    run_program(options, build / "program", language)


def resolved(words):
    """Paths without '..' in -I and -L."""
    return [word[:2] + str(Path(word[2:]).resolve()) if word[:2] in ("-I", "-L") else word for word in words]


def layout(options):
    """What must be there, and what must not."""
    prefix = options.prefix
    for header in HEADERS:
        if not (prefix / "include/tersum" / header).is_file():
            sys.exit(f"{header} is not installed")
    for path in (f"{options.libdir}/libtersum.so", f"{options.libdir}/pkgconfig/tersum.pc",
                 f"{options.libdir}/cmake/tersum/tersumConfig.cmake",
                 f"{options.libdir}/cmake/tersum/tersumConfigVersion.cmake",
                 "share/doc/tersum/LICENSE", "share/doc/tersum/docs/architecture.md"):
        if not (prefix / path).is_file():
            sys.exit(f"{path} is not installed")
    stage = str(options.work / "stage")
    for path in prefix.rglob("*"):
        if path.suffix in (".cmake", ".pc") and stage in path.read_text(encoding="utf-8"):
            sys.exit(f"{path} remembers where it was installed first")
        if path.suffix in (".hpp", ".h"):
            check_includes(path)
    targets = "".join(path.read_text(encoding="utf-8") for path in prefix.rglob("tersumTargets*.cmake"))
    for package in ("ucx::", "OpenSSL::", "spdlog::", "Boost::"):
        if package in targets:
            sys.exit(f"users would need {package}")
    check_symbols(prefix / options.libdir / "libtersum.so")


def check_includes(header):
    """Public headers include the standard library and each other."""
    for line in header.read_text(encoding="utf-8").splitlines():
        if line.startswith('#include "') and not line.startswith('#include "tersum/'):
            sys.exit(f"{header} includes something that is not installed: {line}")
        if line.startswith("#include <") and "/" in line:
            sys.exit(f"{header} includes another library: {line}")


def check_symbols(library):
    """The library shows its own names only."""
    for line in call(["nm", "-DC", "--defined-only", library]).splitlines():
        name = line.split(" ", 2)[2]
        name = name.split(" for ", 1)[-1]
        if not name.startswith(("tersum::", "tersum_")):
            sys.exit(f"libtersum shows {name}")


def tools(options):
    """They run from where they are installed."""
    folder = options.prefix / options.bindir
    call([folder / "tersum-info"])
    output = call([folder / "tersum-run", "-n", "2", "--no-prefix", "--", folder / "tersum-perf", "allreduce",
                   "--max", "1K", "--iterations", "2"])
    if "# Out of bounds values : 0 OK" not in output:
        sys.exit("tersum-perf has found something wrong")


def main():
    parser = argparse.ArgumentParser()
    for name in ("prefix", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("libdir", "bindir", "cmake", "generator", "cc", "cxx", "sanitize"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("what", choices=["layout", "tools", "find_package", "pkg_config"])
    parser.add_argument("language", nargs="?", choices=["c", "cpp"])
    options = parser.parse_args()
    if options.what in ("layout", "tools"):
        {"layout": layout, "tools": tools}[options.what](options)
    else:
        {"find_package": find_package, "pkg_config": pkg_config}[options.what](options, options.language)


if __name__ == "__main__":
    main()

"""The session: Java from the machine or from the package index, the right Python in the workers."""

import os
import stat
import subprocess
import sys

import pytest

import dirqueue.spark
from dirqueue.spark import java


def fake_java(directory, version, *, module):
    """Make a `java` that says what a real one of that version says."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    modules = f"java.base@{version}" + (f"\n{java.MODULE}@{version}" if module else "")
    program.write_text(
        f'#!/bin/sh\ncase "$1" in\n-version) echo \'openjdk version "{version}.0.1"\' >&2;;\n'
        f"--list-modules) echo '{modules}';;\n*) echo \"$@\";;\nesac\n"
    )
    program.chmod(0o755)
    return str(directory)


def test_the_session_runs_without_any_java_installed(spark):
    """These tests hide java: the session runs on the packaged one, through a generated launcher."""
    import shutil

    assert shutil.which("java") is None
    assert os.environ["JAVA_HOME"].startswith(os.environ["XDG_CACHE_HOME"])
    assert spark.range(3).count() == 3


def test_the_workers_run_this_python(spark):
    """Not whatever python3 is on PATH."""

    def where(_):
        yield sys.executable

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect() == [sys.executable]


@pytest.mark.parametrize("version", java.VERSIONS)
def test_a_usable_java_of_the_machine_is_taken_as_it_is(tmp_path, monkeypatch, version):
    """A whole JDK that JAVA_HOME names needs no launcher."""
    directory = fake_java(tmp_path / "jdk", version, module=True)
    monkeypatch.setenv("JAVA_HOME", directory)
    assert java.find_java() == directory


def test_a_java_without_the_module_gets_a_launcher(tmp_path, monkeypatch):
    """The launcher drops that one argument and passes on all others, spaces and all."""
    directory = fake_java(tmp_path / "jre with space", 21, module=False)
    monkeypatch.setenv("JAVA_HOME", directory)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = java.find_java()
    assert found != directory
    launcher = os.path.join(found, "bin", "java")
    assert os.stat(launcher).st_mode & stat.S_IXUSR
    words = ["-cp", "a b", f"--add-modules={java.MODULE}", "--add-modules=other", ""]
    told = subprocess.run([launcher, *words], capture_output=True, text=True, check=True).stdout
    assert told == "-cp a b --add-modules=other \n"
    assert java.find_java() == found, "written once"


@pytest.mark.parametrize("version", [8, 11, 99])
def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path, monkeypatch, version):
    """Then the packaged one is used; and if there is none, the error names what was found."""
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "old", version, module=True))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert java.find_java().startswith(str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(java.JavaNotFound, match=f"version {version}.*dirqueue\\[spark\\]"):
        java.find_java()


def test_a_public_name_stays_a_function_whatever_is_imported(spark):
    """No module of the package is named like a function of it: importing the one would hide the other."""
    import importlib
    import pkgutil

    for module in pkgutil.walk_packages(dirqueue.spark.__path__, "dirqueue.spark."):
        importlib.import_module(module.name)
    assert all(callable(getattr(dirqueue.spark, name)) for name in dirqueue.spark.__all__)

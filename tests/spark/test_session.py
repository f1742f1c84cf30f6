"""The session: Java from the machine or from the package index, the right Python in the workers."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import dirqueue.spark
from dirqueue import Queue
from dirqueue.spark import home, java, sessions


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
    opens = f"--add-opens={java.PACKAGE}=ALL-UNNAMED"
    words = ["-cp", "a b", f"--add-modules={java.MODULE}", "--add-modules=other", opens, ""]
    done = subprocess.run([launcher, *words], capture_output=True, text=True, check=True)
    assert done.stdout == f"-cp a b --add-modules=other {opens} \n"
    assert java.find_java() == found, "written once"


@pytest.mark.parametrize("version", java.VERSIONS)
def test_a_quiet_java_is_started_without_what_it_warns_about(tmp_path, monkeypatch, version):
    """The incubator module, and from Java 24 on a package that is no more."""
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "jdk", version, module=True))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    launcher = os.path.join(java.find_java(quiet=True), "bin", "java")
    opens = f"--add-opens={java.PACKAGE}=ALL-UNNAMED"
    words = [f"--add-modules={java.MODULE}", opens, "-cp"]
    done = subprocess.run([launcher, *words], capture_output=True, text=True, check=True)
    assert done.stdout == ("-cp\n" if version > java.PACKAGE_UNTIL else f"{opens} -cp\n")


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


SETTINGS = """
import dirqueue.spark
spark = dirqueue.spark.session(**{"spark.sql.shuffle.partitions": 3})
conf = spark.sparkContext.getConf()
print([conf.get(key) for key in ("spark.app.name", "spark.master", "spark.ui.enabled", "spark.sql.shuffle.partitions")])
print(spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())
spark.stop()
"""


def configured(tmp_path, **defaults):
    """Return an environment with a Spark configuration of its own."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in defaults.items()))
    env = os.environ | {"SPARK_CONF_DIR": str(conf), "JAVA_HOME": java.find_java()}
    env.pop("SPARK_SUBMIT_OPTS", None)
    return env


def test_the_session_keeps_what_spark_submit_was_given(without_java, tmp_path):
    """Name, web interface and log level of the command line, the master of spark-defaults.conf."""
    program = tmp_path / "program.py"
    program.write_text(SETTINGS)
    env = configured(tmp_path, **{"spark.master": "local[1]", "spark.ui.port": "0"})
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    words = ["--name", "mine", "--conf", "spark.ui.enabled=true", "--conf", "spark.log.level=WARN"]
    done = subprocess.run(
        [submit, *words, program], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["['mine', 'local[1]', 'true', '3']", "WARN"], done.stderr


@pytest.mark.slow
def test_the_session_keeps_what_spark_defaults_configures(without_java, tmp_path):
    """Started by Python itself: spark-defaults.conf outranks the defaults of session(), its arguments outrank both."""
    defaults = {
        "spark.app.name": "theirs",
        "spark.master": "local[1]",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.log.level": "WARN",
        "spark.sql.shuffle.partitions": "7",
    }
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        env=configured(tmp_path, **defaults), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["['theirs', 'local[1]', 'true', '3']", "WARN"], done.stderr


def test_log_settings_of_spark_are_kept(tmp_path, monkeypatch):
    """A log4j2 file in its configuration, or in the options of the JVM, is used instead of dirqueue's."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert "-Dlog4j2.configurationFile=" in sessions._options("")
    assert "/dirqueue/spark/" not in sessions._options("-Dlog4j2.configurationFile=mine.xml")
    (tmp_path / "log4j2.properties").touch()
    assert "log4j2" not in sessions._options("")


@pytest.mark.parametrize("machine", ["no Java", pytest.param("a whole JDK", marks=pytest.mark.slow)])
def test_a_job_of_the_command_prints_nothing_on_stderr(without_java, tmp_path, machine):
    """Cron mails whatever is printed: neither Java, nor Spark's start, nor its log has anything to say."""
    Queue(tmp_path / "q").put(b"1")
    env = configured(tmp_path)
    env.pop("JAVA_HOME")
    env.pop("JDK_JAVA_OPTIONS")  # Java says that it has seen them
    if machine == "a whole JDK":
        whole = [home for home in Path("/usr/lib/jvm").glob("*") if java._has_module(str(home))]
        if not whole:
            pytest.skip("no JDK in /usr/lib/jvm")
        env["JAVA_HOME"] = str(max(whole))
    done = subprocess.run(
        [sys.executable, "-m", "dirqueue", "spark", "report", "q"],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\t")[1] == "1"


WHERE = """
import os, sys
import dirqueue.spark
spark = dirqueue.spark.session("local[1]")
def where(_):
    import pyspark
    yield os.path.isfile(pyspark.__file__)
print(spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect(), os.environ.get("SPARK_HOME"))
"""


def test_the_workers_of_a_local_session_import_compiled_files(without_java, tmp_path):
    """Not from an archive; and the home that brings this about is not passed on to other programs."""
    env = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    env |= {"PYTHONPATH": str(Path(dirqueue.__file__).parent.parent), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WHERE], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.splitlines()[-1:] == ["[True] None"], done.stderr[-2000:]


@pytest.mark.parametrize(
    ("master", "given"), [("local[2]", "/opt/spark"), ("spark://host:7077", None), ("", None)]
)
def test_a_home_of_the_user_and_a_cluster_are_left_alone(monkeypatch, master, given):
    """Executors elsewhere have homes of their own."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    if given:
        monkeypatch.setenv("SPARK_HOME", given)
    with home.quick_start(master):
        assert os.environ.get("SPARK_HOME") == given


def test_a_home_is_made_once_and_one_that_cannot_be_made_is_done_without(tmp_path, monkeypatch):
    """It only saves time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = home.unzipped()
    assert home.unzipped() == found
    assert os.listdir(tmp_path / "cache" / "dirqueue") == [os.path.basename(found)]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert home.unzipped() is None

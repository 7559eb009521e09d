from reprolib.paths import imports
from reprolib.runs import sources
from reprolib.runs.dp_grpo import GrpoSpec
from tests.runs.specs import spec


def test_the_fingerprint_covers_mechanism_tasks_models_learning_and_runs():
    rooms = {p.parent.name for p in sources.files(GrpoSpec.builder)}
    assert {"privacy", "tasks", "lm", "learn", "runs"} <= rooms
    names = {f"{p.parent.name}/{p.name}" for p in sources.files(GrpoSpec.builder)}
    assert {
        "privacy/mechanism.py",
        "learn/trainer.py",
        "learn/grpo.py",
        "lm/generate.py",
        "tasks/verifiers.py",
    } <= names


def test_code_that_no_run_uses_does_not_make_runs_stale():
    names = {f"{p.parent.name}/{p.name}" for p in sources.files(GrpoSpec.builder)}
    assert not names & {"privacy/audit.py", "privacy/preference.py", "reprolib/cli.py", "evidence/stats.py"}


def test_comments_and_docstrings_do_not_change_the_code_but_a_constant_does(tmp_path):
    texts = {
        "a": 'def f(x):\n    """Text."""\n    return x + 1\n',
        "b": "# why\ndef f( x ):\n    return (x + 1)  # this\n",
        "c": "def f(x):\n    return x + 2\n",
    }
    found = {}
    for name, text in texts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        found[name] = sources._code(path)
    assert found["a"] == found["b"] != found["c"]


def test_the_weights_that_the_project_keeps_count(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"1")
    monkeypatch.setattr(sources, "root", lambda: tmp_path)
    monkeypatch.setattr(sources, "files", lambda builder: [])
    first = sources.fingerprint(spec(model="tiny"))
    (folder / "model.safetensors").write_bytes(b"2")
    sources._fingerprint.cache_clear()
    assert sources.fingerprint(spec(model="tiny")) != first
    sources._fingerprint.cache_clear()


def test_another_engine_than_the_run_s_does_not_count(tmp_path, monkeypatch):
    assert sources.fingerprint(spec(engine="vllm")) != sources.fingerprint(spec())
    unused = {p for module in sources.ENGINES.values() for p in imports(f"import {module}")}
    assert unused
    assert unused <= set(sources.files(GrpoSpec.builder))

"""What a terminal and a pipe get to see."""

import io
from pathlib import Path

import pytest
from rich.console import Console

import jaxroute as jr
from jaxroute import comparison
from jaxroute.report import tables
from jaxroute.report.target import whole_directory


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "mine.csv"
    path.write_text(
        "session_id,turn,arrival_s,input_tokens,output_tokens\n"
        "a,0,0,1200,300\na,1,40,30,200\nb,0,0,900000,5\n"
    )
    study = jr.load_study(traces=[path])
    return study, comparison.run(study)


@pytest.mark.parametrize(("width", "columns"), [(80, 3), (140, 8), (160, 10), (180, 12)])
def test_tables_fit_the_terminal_with_every_policy_named(outcome, width, columns):
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    tables.show(*outcome, out)
    printed = out.file.getvalue()
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= width
    for policy in (*outcome[0].policies, "hindsight_plan", "lower_bound"):
        assert sum(f" {policy} " in line for line in printed.splitlines()) >= 3
    header = next(line for line in printed.splitlines() if line.startswith(" policy"))
    shown = [name for name in tables.COLUMNS if name not in ("water L", "cost USD")]
    for n, name in enumerate([*shown, "water L", "cost USD"]):
        assert (name in header) == (n < columns)


def test_what_a_bound_does_not_have_is_left_blank_and_its_worth_is_said(outcome):
    out = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    tables.show(*outcome, out)
    printed = out.file.getvalue()
    assert not any(word in printed for word in ("nan", "<NA>", "None"))
    notes = list(tables.notes(*outcome))
    assert any("drop: optimum; keep, ttl_300s: feasible plan, not an optimum" in n for n in notes)


def test_a_pipe_gets_every_column_and_no_escapes(outcome, monkeypatch, capsys):
    tables.show(*outcome, tables.console())
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert all(name in printed for name in tables.COLUMNS)


def test_progress_is_told_up_to_the_end(outcome):
    told = []
    comparison.run(outcome[0], lambda step, share: told.append((step, share)))
    assert told[0] == ("mine: compile", 0.0)
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[-1] == ("mine: bootstrap", 1.0)


def test_unserved_turns_are_said(outcome):
    notes = list(tables.notes(*outcome))
    assert any("3 turns, of which 1 (33.33%) unserved" in note for note in notes)
    out = Console(file=io.StringIO(), width=160)
    tables.show(*outcome, out)
    assert out.file.getvalue().count(", 33.33 % unserved") == 3
    assert any("no model reaches the quality floor" in note for note in notes)


NAMES = ("run.json", "table.csv")


def _write(target, text="{}"):
    with whole_directory(target, NAMES) as fresh:
        (fresh / "table.csv").write_text(text)
        (fresh / "run.json").write_text('{"results_version": 1}')


def test_a_directory_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "out"
    with pytest.raises(RuntimeError), whole_directory(target, NAMES) as fresh:
        (fresh / "table.csv").write_text("x")
        raise RuntimeError
    assert not target.parent.exists()
    for text in ("one", "two"):
        _write(target, text)
        assert (target / "table.csv").read_text() == text
        assert {path.name for path in target.iterdir()} == set(NAMES)
        assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_the_current_directory_and_a_link_serve_as_well(tmp_path, monkeypatch):
    here, real, link = tmp_path / "here", tmp_path / "real", tmp_path / "link"
    here.mkdir()
    real.mkdir()
    link.symlink_to(real)
    monkeypatch.chdir(here)
    for target in (Path(), link, link, tmp_path / "dangling"):
        if target.name == "dangling":
            target.symlink_to(tmp_path / "new")
        _write(target)
        assert {path.name for path in target.iterdir()} == set(NAMES)
    assert link.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"here", "real", "link", "dangling", "new"}


@pytest.mark.parametrize("bad", ["file", "file/below", "x" * 300, "other"])
def test_what_cannot_be_written_is_refused_at_once(tmp_path, bad):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.csv").write_text("mine")
    with pytest.raises(jr.InputError) as caught, whole_directory(tmp_path / bad, NAMES):
        raise AssertionError("work was begun")
    assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / "other" / "table.csv").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "other"}


def test_names_are_no_markup(tmp_path):
    trace = tmp_path / "[red]x.csv"
    trace.write_text("session_id,turn,arrival_s,input_tokens,output_tokens\na,0,0,12,3\n")
    study = tmp_path / "study.toml"
    study.write_text(
        'policies = ["a[/b]"]\n[[datasets]]\npath = "[red]x.csv"\n'
        '[policy."a[/b]"]\npreset = "sticky"\n'
    )
    loaded = jr.load_study(study)
    out = Console(file=io.StringIO(), width=140)
    tables.show(loaded, comparison.run(loaded), out)
    printed = out.file.getvalue()
    assert "[red]x, caches: keep" in printed
    assert " a[/b] " in printed
    assert " (too few sessions)" in printed


def test_resolved_policies_are_masked_as_the_comparison_masked_them(outcome):
    study, compared = outcome
    named = comparison.resolved(study, study.datasets[0])
    assert list(named) == list(study.policies)
    for name, entry in compared.fixed["mine"].items():
        axis = study.fixed[name]
        mask = getattr(named[name], f"{axis}_allowed")
        entries = getattr(study.config.fleet, f"{axis}s")
        assert [each for each, on in zip(entries, mask, strict=True) if on] == [entry]

"""`cnnkit reproduce all`: every experiment in turn, in smoke size within the time that is promised."""

from cnnkit.command import main
from cnnkit.experiments import EXPERIMENTS


def test_what_the_machine_cannot_hold_is_said_and_the_others_run(tmp_path, monkeypatch, capsys):
    asked = []

    class Done:
        folder = tmp_path

        def __str__(self):
            return "done"

    def fake(name, *_, **__):
        asked.append(name)
        if name == "cluster":
            raise OSError("no network namespaces here: run as root")
        return Done()

    monkeypatch.setattr("cnnkit.experiments.reproduce", fake)
    assert main(["reproduce", "all", "--preset", "smoke", "--folder", str(tmp_path)]) == 2
    assert asked == list(EXPERIMENTS)
    told = capsys.readouterr()
    assert told.out.count("done") == len(EXPERIMENTS) - 1
    assert told.err == "cnnkit: cluster was left out: no network namespaces here: run as root\n"
    assert main(["reproduce", "cluster", "--preset", "smoke", "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "cnnkit: no network namespaces here: run as root\n"

"""What the doctor says of the machine, and where onnxruntime computes each graph."""

from collections import Counter
from dataclasses import asdict

from benchmarks.gpu.plan import Check
from polyhead_server.doctor import examine, this_machine
from polyhead_server.engine.device import CPU
from polyhead_server.engine.session import placed
from polyhead_server.errors import StartError


def run(check: Check) -> None:
    """Open every graph."""
    report = examine(this_machine(), "cpu" if check.device.host_memory else "cuda")
    facts = asdict(report.machine)
    said = [f"{fact} {value}" for fact, value in {**facts.pop("versions"), **facts}.items() if value]
    check.write("line", text="; ".join(said).replace("_", " ") + ".")
    for found in report.problems:
        check.write("problem", what="doctor", reason=f"{found.what}: {found.remedy}")
    for family in check.families:
        with check.attempt(family):
            refused = 0
            for graph in family.signatures():
                left, problem = "", ""
                try:
                    session = check.open(family.folder / f"{graph}.onnx")
                    if check.device.checks_placement:
                        nodes = Counter(operator for _, operator in placed(session).get(CPU, ()))
                        left = ", ".join(f"{count} {operator}" for operator, count in sorted(nodes.items()))
                except StartError as error:
                    problem = str(error)
                refused += bool(problem)
                check.row(family=str(family), graph=graph, on_the_CPU=left or "–", problem=problem or "–")
            check.judge("kinds", refused)

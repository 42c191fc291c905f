#!/usr/bin/env python3
"""Makes tests/golden/template/cases.json: what `transformers` writes for the templates of tests/golden/template/cases.py.

needs (PyPI): jinja2, transformers
usage: make_template_goldens.py

Each case has a name, a template, its variables, and "text", or "error" if the template fails. The message is only kept where a template
raised it itself: other messages are jinja2's own.
"""
import datetime, json, os, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(ROOT, "tests/golden/template")
sys.path.insert(0, GOLDEN)
import jinja2
import transformers
from transformers.utils import chat_template_utils
from cases import CASES


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2)


def render(template, variables):
    try:
        return {"text": chat_template_utils._compile_jinja_template(template).render(**variables)}
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error) if raised else type(error).__name__}
    except Exception as error:  # what Python says of a wrong operand
        return {"error": type(error).__name__}


def main():
    chat_template_utils.datetime = FixedDate
    rows, names = [], set()
    for name, template, *variables in CASES:
        assert name not in names, name
        names.add(name)
        variables = variables[0] if variables else {}
        rows.append({"name": name, "template": template, "variables": variables, **render(template, variables)})
    versions = {"jinja2": jinja2.__version__, "transformers": transformers.__version__}
    with open(os.path.join(GOLDEN, "cases.json"), "w") as file:
        file.write('{"made_with": ' + json.dumps(versions) + ', "date": "2026-01-02", "cases": [\n')
        file.write(",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]}\n")
    failing = sum("error" in row for row in rows)
    print(f"{len(rows)} cases, {failing} of them fail as they must")


if __name__ == "__main__":
    main()

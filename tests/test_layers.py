"""Imports go one way through the rooms: privacy, tasks, lm < learn < runs < evidence < cli."""

import ast

ORDER = [["errors"], ["paths"], ["privacy", "tasks", "lm"], ["learn"], ["runs"], ["evidence"], ["cli"]]
LEVELS = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{a.name}" for a in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "reprolib" and len(parts) > 1 and parts[1] in LEVELS:
                yield parts[1]


def test_a_room_imports_only_itself_and_rooms_below(root):
    package = root / "reprolib"
    wrong = []
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for other in imported_rooms(path):
            if other != room and LEVELS[other] >= LEVELS[room]:
                wrong.append(f"{path.relative_to(root)} imports {other}")
    assert wrong == []


def test_every_room_has_a_level(root):
    rooms = {p.stem for p in (root / "reprolib").iterdir() if p.stem not in ("__init__", "__pycache__")}
    assert rooms <= set(LEVELS)

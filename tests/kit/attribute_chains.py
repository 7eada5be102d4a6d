"""Finds where a module follows an attribute of another package's object to a further object, and
takes an attribute of that: `cluster.forwarder.log` outside `mqttree.broker.cluster`.

Such a module knows how two objects of others are made inside. It should ask the first one, or be
handed the second one when it is made. Data are there to be read, and do not count: dataclasses,
named tuples, enums, records, packets, counters, and whatever is not of this project.

Types come from annotations, which all functions of this project have, and from what is assigned.
Where a type is not known, nothing is found: a name that holds `cluster.forwarder` starts anew.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.kit.source import parse

DATA = {"NamedTuple", "Enum", "IntEnum", "StrEnum", "IntFlag", "Flag", "TypedDict"}
"""A class with such a base is data."""

DATA_METACLASSES = {"Slotted", "RecordType"}
"""A class that is made by one of these is data (`mqttree.broker.base.record`)."""

DATA_MODULES = ("mqttree.broker.wire.packets", "mqttree.broker.base.counters")
"""Classes of these modules are data."""

WRAPPERS = {"Final", "ClassVar", "Annotated", "Awaitable", "Coroutine", "type", "Type"}
"""Generic types that stand for their last argument."""

MANY = {
    "list", "set", "frozenset", "deque", "tuple", "Iterable", "Iterator", "Sequence", "Collection",
    "Set", "AbstractSet", "MutableSequence", "KeysView", "ValuesView", "Generator",
}  # fmt: skip
"""Generic types that are iterated over for their first argument."""

MAPPINGS = {"dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"}


class Chain(NamedTuple):
    """A place where a module reaches too far."""

    module: str
    line: int
    text: str
    """As written: "self._cluster.forwarder.log"."""
    through: str
    """The class of another package whose attribute is followed, and that attribute:
    "Cluster.forwarder"."""


@dataclass(eq=False)
class Class:
    """A class of the project."""

    name: str
    module: Module
    bases: list[ast.expr]
    data: bool
    members: dict[str, Member] = field(default_factory=dict)


@dataclass(eq=False)
class Member:
    """An attribute of a class: its annotation, or the expressions that are assigned to it."""

    annotation: ast.expr | None
    values: list[tuple[ast.expr, Scope]] = field(default_factory=list)
    method: bool = False
    """It is called: the annotation is of what it returns."""


@dataclass(eq=False)
class Module:
    """One module: what its names mean."""

    name: str
    package: str
    tree: ast.Module
    names: dict[str, Class | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr | tuple[str, str]]
    """A tuple: what another module calls by the second name."""


@dataclass(eq=False)
class Scope:
    """The names within a function, or within a module outside of functions."""

    module: Module
    own: Class | None
    above: Scope | None
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    values: dict[str, list[tuple[ast.expr, str]]] = field(default_factory=dict)
    """What is assigned to each name; the second says how: "" as it is, "each" for its elements."""


class Type(NamedTuple):
    """What an expression may be."""

    classes: frozenset[Class] = frozenset()
    element: ast.expr | None = None
    """Annotation of what iterating gives, or of the values of a mapping."""
    where: Module | None = None
    """In which module that annotation is written."""
    result: ast.expr | None = None
    """Annotation of what a call returns."""
    made: frozenset[Class] = frozenset()
    """Classes: what a call makes."""
    pairs: bool = False
    """A mapping, whose items() are pairs."""


UNKNOWN = Type()


class Project:
    """All modules, and the types of what is in them."""

    def __init__(self, sources: Mapping[str, str], package_of: Iterable[str]) -> None:
        """`sources`: the text of each module, by dotted name. `package_of`: the packages; a module
        belongs to the longest that is the beginning of its name."""
        packages = sorted(package_of, key=len, reverse=True)
        self.modules: dict[str, Module] = {}
        self._scopes: dict[ast.AST, Scope] = {}
        self._busy: set[tuple[int, str]] = set()
        self._known: dict[tuple[int, int], Type] = {}
        for name, source in sources.items():
            package = next((p for p in packages if name == p or name.startswith(p + ".")), name)
            self.modules[name] = Module(name, package, parse(source), {})
        for module in self.modules.values():
            self._read(module)

    # ---------------------------------------------------------------- reading

    def _read(self, module: Module) -> None:
        scope = Scope(module, None, None)
        self._scopes[module.tree] = scope
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    module.names[alias.asname or alias.name] = (node.module, alias.name)
        self._statements(module.tree.body, scope)
        for statement in module.tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                module.names.setdefault(statement.targets[0].id, statement.value)

    def _statements(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.AST, scope: Scope) -> None:
        """Note the names that `node` defines, and whatever is in it."""
        self._scopes.setdefault(node, scope)
        match node:
            case ast.ClassDef():
                self._class(node, scope)
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if scope.above is None:
                    scope.module.names[node.name] = node
                self._function(node, scope)
                return
            case ast.Lambda(args=arguments, body=inside):
                inner = Scope(scope.module, scope.own, scope)
                inner.values = {argument.arg: [] for argument in arguments.args}
                self._statement(inside, inner)
                return
            case ast.AnnAssign(target=target, annotation=annotation):
                self._annotated(target, annotation, scope)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assigned(target, value, "", scope)
            case ast.NamedExpr(target=target, value=value):
                self._assigned(target, value, "", scope)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._assigned(target, value, "each", scope)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._assigned(target, value, "", scope)
        for child in ast.iter_child_nodes(node):
            self._statement(child, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        made = Class(
            node.name,
            scope.module,
            node.bases,
            any(_last(decorator) == "dataclass" for decorator in node.decorator_list)
            or any(_last(base) in DATA for base in node.bases)
            or any(_last(keyword.value) in DATA_METACLASSES for keyword in node.keywords)
            or scope.module.name.startswith(DATA_MODULES),
        )
        scope.module.names[node.name] = made
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    made.members[name] = Member(annotation)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    kinds = {_last(decorator) for decorator in statement.decorator_list}
                    method = not kinds & {"property", "cached_property"}
                    if not kinds & {"setter"}:
                        made.members[statement.name] = Member(statement.returns, method=method)
        inner = Scope(scope.module, made, scope)
        self._statements(node.body, inner)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        inner = Scope(scope.module, scope.own, scope)
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.annotation is not None:
                inner.annotations[argument.arg] = argument.annotation
        self._statements(node.body, inner)

    def _annotated(self, target: ast.expr, annotation: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.annotations.setdefault(target.id, annotation)
        elif _of_self(target) and scope.own is not None and isinstance(target, ast.Attribute):
            scope.own.members[target.attr] = Member(annotation)

    def _assigned(self, target: ast.expr, value: ast.expr, how: str, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.values.setdefault(name, []).append((value, how))
            case ast.Attribute(attr=name) if _of_self(target) and scope.own is not None:
                member = scope.own.members.setdefault(name, Member(None))
                if not how:
                    member.values.append((value, scope))
            case ast.Tuple(elts=targets):
                match value:
                    case ast.Tuple(elts=values) if len(values) == len(targets) and not how:
                        for one, its in zip(targets, values, strict=True):
                            self._assigned(one, its, "", scope)
                    case ast.Call(func=ast.Attribute(attr="items")) if len(targets) == 2:
                        self._assigned(targets[1], value, "each", scope)
                    case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]) if how:
                        self._assigned(targets[1], inner, "each", scope)

    # ---------------------------------------------------------------- types of annotations

    def named(self, module: Module, name: str, depth: int = 0) -> object:
        """Return what a name of a module means: a class, a function, an expression; None:
        unknown."""
        found = module.names.get(name)
        if isinstance(found, tuple):
            there = self.modules.get(found[0])
            return None if there is None or depth > 9 else self.named(there, found[1], depth + 1)
        return found

    def annotated(self, annotation: ast.expr | None, module: Module) -> Type:
        """Return the type that an annotation says."""
        match annotation:
            case ast.Constant(value=str(text)):
                try:
                    return self.annotated(ast.parse(text, mode="eval").body, module)
                except SyntaxError:
                    return UNKNOWN
            case ast.BinOp(left=left, right=right):
                return _either(self.annotated(left, module), self.annotated(right, module))
            case ast.Name(id=name):
                found = self.named(module, name)
                if isinstance(found, Class):
                    return Type(frozenset({found}))
                if isinstance(found, ast.expr) and found is not annotation:
                    return self.annotated(found, self._home(module, name))
            case ast.Subscript(value=generic, slice=inside):
                arguments = inside.elts if isinstance(inside, ast.Tuple) else [inside]
                kind = _last(generic)
                if kind in WRAPPERS:
                    return self.annotated(arguments[-1], module)
                if kind in ("Optional", "Union"):
                    found_types = [self.annotated(argument, module) for argument in arguments]
                    return _any(found_types)
                if kind in MANY:
                    return Type(element=arguments[0], where=module)
                if kind in MAPPINGS:
                    return Type(element=arguments[-1], where=module, pairs=True)
                if kind == "Callable":
                    return Type(result=arguments[-1], where=module)
                return self.annotated(generic, module)
        return UNKNOWN

    def _home(self, module: Module, name: str) -> Module:
        """Return the module in which a name is defined that another one imports."""
        found = module.names.get(name)
        while isinstance(found, tuple) and found[0] in self.modules:
            module, name = self.modules[found[0]], found[1]
            found = module.names.get(name)
        return module

    # ---------------------------------------------------------------- types of expressions

    def type_of(self, node: ast.expr, scope: Scope) -> Type:
        """Return what an expression may be."""
        key = (id(node), id(scope))
        if key in self._known:
            return self._known[key]
        self._known[key] = UNKNOWN  # while it is asked for, if it depends on itself
        found = self._known[key] = self._type_of(node, scope)
        return found

    def _type_of(self, node: ast.expr, scope: Scope) -> Type:
        match node:
            case ast.Name(id=name):
                return self._name(name, scope)
            case ast.Attribute(value=value, attr=name):
                return self.member(self.type_of(value, scope), name)
            case ast.Call(func=ast.Attribute(value=owner, attr="values" | "items" | "copy")) if (
                held := self.type_of(owner, scope)
            ).pairs:
                return held._replace(pairs=False)
            case ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop" | "popleft")) if (
                held := self.type_of(owner, scope)
            ).element is not None:
                return self.each(held)
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "sorted" | "set" | "reversed" | "iter"),
                args=[inner, *_],
            ):
                return self.type_of(inner, scope)
            case ast.Call(func=ast.Name(id="next" | "min" | "max"), args=[inner, *_]):
                return self.each(self.type_of(inner, scope))
            case ast.Call(func=function):
                called = self.type_of(function, scope)
                if called.made:
                    return Type(called.made)
                if called.result is not None and called.where is not None:
                    return self.annotated(called.result, called.where)
            case ast.Subscript(value=value):
                return self.each(self.type_of(value, scope))
            case ast.BoolOp(values=values):
                return _any([self.type_of(value, scope) for value in values])
            case ast.IfExp(body=one, orelse=other):
                return _either(self.type_of(one, scope), self.type_of(other, scope))
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self.type_of(value, scope)
        return UNKNOWN

    def _name(self, name: str, scope: Scope) -> Type:
        if name == "self" and scope.own is not None:
            return Type(frozenset({scope.own}))
        at: Scope | None = scope
        while at is not None:
            if name in at.annotations:
                return self.annotated(at.annotations[name], at.module)
            if name in at.values:
                found = [
                    self.each(self.type_of(value, at)) if how else self.type_of(value, at)
                    for value, how in at.values[name]
                ]
                return _any(found)
            at = at.above
        known = self.named(scope.module, name)
        if isinstance(known, Class):
            return Type(made=frozenset({known}))
        if isinstance(known, ast.FunctionDef):
            return Type(result=known.returns, where=self._home(scope.module, name))
        return UNKNOWN

    def each(self, held: Type) -> Type:
        """Return what the elements of a container may be."""
        if held.element is None or held.where is None:
            return UNKNOWN
        return self.annotated(held.element, held.where)

    def member(self, owner: Type, name: str) -> Type:
        """Return what an attribute of an object may be."""
        return _any([self._member(one, name) for one in owner.classes])

    def _member(self, owner: Class, name: str) -> Type:
        for one in self.line(owner):
            member = one.members.get(name)
            if member is None:
                continue
            if member.method:
                return Type(result=member.annotation, where=one.module)
            if member.annotation is not None:
                return self.annotated(member.annotation, one.module)
            return _any([self.type_of(value, scope) for value, scope in member.values])
        return UNKNOWN

    def line(self, owner: Class) -> Iterator[Class]:
        """Yield a class and those that it inherits from."""
        yield owner
        for base in owner.bases:
            for parent in self.annotated(base, owner.module).classes:
                if parent is not owner:
                    yield from self.line(parent)

    def is_data(self, owner: Class) -> bool:
        """Whether objects of a class are there to be read."""
        return any(one.data for one in self.line(owner))

    # ---------------------------------------------------------------- chains

    def chains(self) -> Iterator[Chain]:
        """Yield all places where a module reaches too far."""
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                    scope = self._scopes.get(node, self._scopes[module.tree])
                    first = self.type_of(node.value.value, scope)
                    then = self.type_of(node.value, scope)
                    given = self._given(first, node.value.attr, node.value.value, module)
                    if given and self._foreign(then, module):
                        names = sorted(one.name for one in first.classes)
                        through = f"{'|'.join(names)}.{node.value.attr}"
                        yield Chain(module.name, node.lineno, ast.unparse(node), through)

    def _given(self, owner: Type, name: str, of: ast.expr, module: Module) -> bool:
        """Whether another package gives the object `of`, of the type `owner`, its attribute `name`,
        and the object is more than data. Its class may be of this package and have inherited that;
        but what `self` has inherited is its own, and what a Protocol of this package has is what
        this package asks for."""
        if isinstance(of, ast.Name) and of.id == "self":
            return self._foreign(owner, module)
        return bool(owner.classes) and all(
            self._giver(one, name).module.package != module.package and not self.is_data(one)
            for one in owner.classes
        )

    def _giver(self, owner: Class, name: str) -> Class:
        """Return the class that has the attribute `name` of `owner`; a Protocol has all of its."""
        if any(_last(base) == "Protocol" for base in owner.bases):
            return owner
        return next((one for one in self.line(owner) if name in one.members), owner)

    def _foreign(self, owner: Type, module: Module) -> bool:
        """Whether an object belongs to another package, and is more than data."""
        return bool(owner.classes) and all(
            one.module.package != module.package and not self.is_data(one) for one in owner.classes
        )


def _last(node: ast.expr) -> str:
    """The last name of a decorator or base: "dataclass" for `@dataclass(slots=True)`."""
    match node:
        case ast.Call(func=function):
            return _last(function)
        case ast.Subscript(value=value):
            return _last(value)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _of_self(node: ast.expr) -> bool:
    """Whether an expression is an attribute of `self`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _any(types: list[Type]) -> Type:
    found = UNKNOWN
    for one in types:
        found = _either(found, one)
    return found


def _either(one: Type, other: Type) -> Type:
    """Return the type of what is one or the other."""
    return Type(
        one.classes | other.classes,
        one.element or other.element,
        one.where or other.where,
        one.result or other.result,
        one.made | other.made,
        one.pairs or other.pairs,
    )

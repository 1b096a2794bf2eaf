"""Checks the arguments of the Python interface, whose types Python does not check, against their annotations."""

import errno
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from txlcli.errors import UnknownNameError, UsageError, shortened

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function that raises a UsageError if an argument is unknown, or does not have its annotated type."""
    signature = inspect.signature(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        if not takes_any:
            check_names(function.__name__, named, signature.parameters)
        bound = signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.annotation is not parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
                bound.arguments[name] = as_plain(value)
                check_type(name, bound.arguments[name], parameter.annotation)
        return function(*bound.args, **bound.kwargs)

    return call


def check_names(function: str, named: Iterable[str], known: Iterable[str]) -> None:
    """Raise an UnknownNameError if a function does not have a named argument."""
    names = [name for name in known if name != "self"]
    for name in named:
        if name not in names:
            raise UnknownNameError(f"argument of {function}()", name, names)


def as_plain(value: Any) -> Any:
    """Return an int for a whole number of another type, such as numpy's, and a tuple for a list."""
    if isinstance(value, list | tuple):
        return tuple(map(as_plain, value))
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def check_type(name: str, value: object, annotation: Any) -> None:
    """Raise a UsageError unless a value has a type; a word must be among those of a Literal."""
    words = _words(annotation)
    if isinstance(value, str) and words and value not in words:
        raise UnknownNameError(name, value, words)
    takes_path = not {Path, os.PathLike[str]}.isdisjoint(get_args(annotation))
    if not _fits(value, annotation) or (takes_path and not _is_path(value)):
        expected = inspect.formatannotation(annotation) + (", a path that can exist" if takes_path else "")
        shown = shortened(" ".join(ascii(value).split()))  # of a wrong value only: others may be huge
        raise UsageError(f"`{name}` must be {expected}, not {shown}")


def _words(annotation: Any) -> tuple[str, ...]:
    """Return the words that an option of this type takes; none if it takes any text."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(word for part in get_args(annotation) for word in _words(part))


def _fits(value: object, annotation: Any) -> bool:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    if annotation in (int, float):
        return isinstance(value, int | annotation) and not isinstance(value, bool)
    return isinstance(value, origin or annotation)


def _is_path(value: Any) -> bool:
    """Return True if the operating system accepts a path, of whatever file; None is allowed."""
    try:
        os.lstat("." if value is None else value)
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    except ValueError:  # a zero, or half a character
        return False
    return True

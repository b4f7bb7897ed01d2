"""What the annotations of kio's schemas say about a field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin


@dataclass(frozen=True, slots=True)
class Shape:
    """A field: is it an array, may it be null, and of which structure is it, if of one."""

    array: bool
    optional: bool
    entity: Any


@cache
def shape_of(annotation: Any) -> Shape:
    optional = array = False
    if get_origin(annotation) is UnionType:
        optional = NoneType in get_args(annotation)
        annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
    if get_origin(annotation) is tuple:
        array = True
        annotation = get_args(annotation)[0]
        if get_origin(annotation) is UnionType:
            optional = optional or NoneType in get_args(annotation)
            annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
    return Shape(array, optional, annotation if hasattr(annotation, "__flexible__") else None)

"""What the sections of a recipe are made of: fields with a default, limits and a meaning in one sentence."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def setting(default: Any, description: str, *, may_change: bool = False, **limits: Any) -> Any:
    """Declare a field: its default, its meaning in one sentence, and whether a resumed run may change it."""
    extra: dict[str, Any] | None = {"may_change": True} if may_change else None
    return Field(default, description=description, json_schema_extra=extra, **limits)

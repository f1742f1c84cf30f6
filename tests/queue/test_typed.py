"""Typed queues: nested dataclasses, pydantic models, msgspec structs; what could not be read back is refused at put."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import msgspec
import pydantic
import pytest

from dirqueue import CodecError, Queue, SettingsError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1


Sku = NewType("Sku", str)


@dataclass(frozen=True)
class Item:
    sku: Sku
    price: float
    tags: frozenset[str] = frozenset()


@dataclass(eq=False)
class Customer:
    name: str
    born: date | None = None


@dataclass
class Order:
    id: UUID
    customer: Customer
    items: list[Item]
    at: datetime
    total: Decimal
    colour: Colour = Colour.RED
    size: Size = Size.SMALL
    how: Literal["post", "courier", 3] = "post"
    pair: tuple[int, str] = (1, "a")
    many: tuple[int, ...] = ()
    by_name: dict[str, Item] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    either: Item | Customer | None = None
    note: Annotated[str, "free"] = ""
    clock: time = time(12)
    anything: Any = None
    words: Sequence[str] = ()
    bare: dict = field(default_factory=dict)
    more: Mapping[str, int] = field(default_factory=dict)
    count: int = field(default=0, init=False)

    def __post_init__(self):
        self.count = len(self.items)
        self.words = list(self.words)


@dataclass
class Tree:
    value: int
    below: list[Tree] = field(default_factory=list)


ORDER = Order(
    id=UUID(int=7),
    customer=Customer("Ada", date(1815, 12, 10)),
    items=[Item(Sku("a"), 1.5, frozenset({"x", "y", "z"})), Item(Sku("b"), 2)],
    at=datetime(2026, 11, 18, 1, 2, 3, 4, tzinfo=UTC),
    total=Decimal("3.50"),
    colour=Colour.BLUE,
    how=3,
    pair=(2, "ü"),
    many=(1, 2, 3),
    by_name={"a": Item(Sku("a"), 1.0)},
    seen={3, 1, 2},
    either=Item(Sku("c"), math.inf),
    anything={"free": [1, None, "x"]},
    words=["w"],
    bare={"k": 1},
    more={"n": 1},
)


@pytest.fixture
def make(queue_dir):
    """Give a function that makes typed queues."""
    return lambda codec: Queue(queue_dir, codec=codec, sync=False)


def through(queue, value):
    queue.put(value)
    return queue.get(timeout=0).message.body


def test_nested_dataclass_comes_back_as_it_was(make):
    again = through(make(Order), ORDER)
    assert type(again.customer) is Customer
    assert (again.customer.name, again.customer.born) == ("Ada", date(1815, 12, 10))
    again.customer = ORDER.customer  # it does not compare
    assert again == ORDER
    assert type(again.items[0]) is Item
    assert again.count == 2


def test_dataclass_may_hold_its_own_kind(make):
    tree = Tree(1, [Tree(2, [Tree(3)]), Tree(4)])
    assert through(make(Tree), tree) == tree


def test_nan_is_the_same_nan(make):
    @dataclass
    class Reading:
        value: float

    assert math.isnan(through(make(Reading), Reading(math.nan)).value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"customer": "Ada"}, "customer: expected a JSON object, got 'Ada'"),
        ({"customer": Customer(5)}, "customer.name: expected str, got 5"),
        ({"items": [Item(Sku("a"), "dear")]}, r"items\[0\].price: expected float, got 'dear'"),
        ({"items": [ORDER]}, r"items\[0\]: Item has no field 'id'"),
        ({"pair": (1, 2, 3)}, "pair: expected a list of 2"),
        ({"pair": [1, "a"]}, "would come back as"),
        ({"how": "pigeon"}, "how: expected one of 'post', 'courier', 3"),
        ({"how": 3.0}, "how: expected one of"),
        ({"many": ("x",)}, r"many\[0\]: expected int"),
        ({"colour": "green"}, "colour: expected a Colour"),
        ({"id": "7"}, "id: expected a UUID"),
        ({"at": 5}, "at: expected a datetime as text"),
        ({"at": "yesterday"}, "at: expected a datetime"),
        ({"total": "much"}, "total: expected a Decimal"),
        ({"by_name": {"a": 1}}, r"by_name\['a'\]: expected a JSON object"),
        ({"by_name": [1]}, "by_name: expected an object"),
        ({"more": {1: 1}}, "would come back as"),
        ({"anything": (1, 2)}, "would come back as"),
        ({"seen": {True}}, r"seen\[0\]: expected int, got True"),
        ({"either": 5}, "either: expected a JSON object, got 5 or either: .* or either: expected NoneType"),
        ({"note": object()}, "object has no JSON form"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",  # the same in every process
)
def test_put_refuses_what_would_not_come_back(make, queue_dir, changes, why):
    """With the place where it is wrong, before anything is written."""
    queue = make(Order)
    bad = Order(**{name: getattr(ORDER, name) for name in ("id", "customer", "items", "at", "total")})
    for name, value in changes.items():
        setattr(bad, name, value)
    with pytest.raises(CodecError, match=why):
        queue.put(bad)
    assert not queue_dir.exists()


def test_consumer_buries_what_another_program_wrote_wrongly(make):
    """With the same reason."""
    queue = make(Tree)
    Queue(queue.path, sync=False).put(b'{"value": 1, "below": [{"value": "x"}]}')
    queue.put(Tree(1))
    assert queue.get(timeout=0).message.body == Tree(1)
    (dead,) = Queue(queue.path).peek("dead")
    assert "below[0].value: expected int, got 'x'" in dead.error


def test_field_added_later_needs_a_default_only(make):
    """Bodies of an earlier version of the program are read."""
    queue = make(Tree)
    Queue(queue.path, sync=False).put(b'{"value": 1}')
    assert queue.get(timeout=0).message.body == Tree(1, [])


@dataclass
class Odd:
    value: complex


@dataclass
class OddInside:
    parts: list[dict[int, str]]


@dataclass
class Unknown:
    value: NoSuchName  # noqa: F821 - the point


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (Odd, "Odd.value: complex has no JSON form"),
        (OddInside, r"OddInside.parts: dict\[int, str\] has no JSON form"),
        (Unknown, "not defined here: NoSuchName"),
    ],
)
def test_type_that_json_cannot_hold_is_refused_when_the_queue_is_opened(make, codec, why):
    with pytest.raises(SettingsError, match=why):
        make(codec)


# --- pydantic, msgspec ---------------------------------------------------------------------------------------


class Address(pydantic.BaseModel):
    street: str
    number: int = pydantic.Field(gt=0)


class Person(pydantic.BaseModel):
    name: str
    home: Address
    since: datetime | None = None


class Point(msgspec.Struct):
    x: int
    label: str = ""
    more: list[Point] = []


class Loose(msgspec.Struct, eq=False):
    x: int


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (
            Person,
            Person(name="Ada", home=Address(street="S", number=1), since=datetime(2026, 1, 1, tzinfo=UTC)),
        ),
        (Point, Point(1, "a", [Point(2)])),
    ],
    ids=["pydantic", "msgspec"],
)
def test_model_or_struct_comes_back_as_it_was(make, codec, value):
    queue = make(codec)
    again = through(queue, value)
    assert again == value
    assert type(again) is codec


def test_struct_that_does_not_compare_is_compared_by_its_bytes(make):
    assert through(make(Loose), Loose(5)).x == 5


@pytest.mark.parametrize(
    ("codec", "bad", "why"),
    [
        (Person, {"name": "Ada"}, "dict is not Person"),
        (Person, Person.model_construct(name="Ada", home=None), "cannot be read back as Person"),
        (Point, {"x": 1}, "dict is not Point"),
        (Point, Point("one"), r"cannot be read back as Point: Expected `int`, got `str` - at `\$.x`"),
        (Point, None, "NoneType is not Point"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_put_refuses_what_the_model_or_struct_would_refuse(make, queue_dir, codec, bad, why):
    queue = make(codec)
    for put in (queue.put, lambda body: queue.put_many([body])):
        with pytest.raises(CodecError, match=why):
            put(bad)
    assert not queue_dir.exists() or len(queue) == 0


def test_bodies_of_models_are_plain_json(make):
    queue = make(Person)
    queue.put(Person(name="Ada", home=Address(street="S", number=1)))
    assert Queue(queue.path, codec="json").get(timeout=0).message.body == {
        "name": "Ada",
        "home": {"street": "S", "number": 1},
        "since": None,
    }


def test_anything_with_the_two_methods_of_a_model_will_do(make):
    class Mine:
        def __init__(self, text):
            self.text = text

        def model_dump_json(self):
            return f'"{self.text}"'

        @classmethod
        def model_validate_json(cls, data):
            return cls(data.decode().strip('"'))

    assert through(make(Mine), Mine("x")).text == "x"

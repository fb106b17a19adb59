"""Generates the traffic of the demo's shop: an endless sequence of transactions from a seed. `pace` executes the transactions on MySQL.
`DemoTraffic` keeps lists of the existing keys. A transaction depends only on these lists and on the seed, so the same seed gives the same
statements. The traffic contains changes that are difficult to merge: changed keys, two swapped keys, a delete and a re-insert in one
transaction, and updates and deletes of a table without a key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

from sluice.console.demo.values import day, document, duration, maybe, moment, money, text

Statement = tuple[str, tuple[Any, ...]]
Transaction = list[Statement]


@dataclasses.dataclass
class Shop:
    """The existing keys of each table. Keys are in lists, so that the same random index selects the same key in every run."""

    customers: list[int] = dataclasses.field(default_factory=list)
    addresses: list[int] = dataclasses.field(default_factory=list)
    categories: list[int] = dataclasses.field(default_factory=list)
    products: list[str] = dataclasses.field(default_factory=list)
    orders: list[int] = dataclasses.field(default_factory=list)
    payments: list[int] = dataclasses.field(default_factory=list)
    shipments: list[int] = dataclasses.field(default_factory=list)
    carts: list[int] = dataclasses.field(default_factory=list)
    stock_movements: list[int] = dataclasses.field(default_factory=list)
    flash_sales: list[int] = dataclasses.field(default_factory=list)
    has_added_column: bool = False
    visits: int = 0  # The table `visits` has ids from 1 up to this number, except those of deleted rows.


KEY_OF = {"products": "sku"}  # The key column of each table whose key is not `id`.


class DemoTraffic:
    """Generates random transactions. A new id is greater than all earlier ids of all tables, so no new row reuses a key."""

    def __init__(self, shop: Shop, seed: str) -> None:
        self.shop = shop
        self._draw = Random(seed)  # noqa: S311  reproducible on purpose
        taken = [key for name in vars(shop) for key in _integers(getattr(shop, name))]
        self._next_id = max(taken, default=0) + 1
        kinds = [kind for kind, weight in self._weights() for _ in range(weight)]
        self._kinds: list[Callable[[], Transaction]] = kinds

    def first(self) -> list[Transaction]:
        """Returns the transactions that fill an empty shop: one for the categories, one for the products, and one for the customers."""
        return [
            [self._new_category(number) for number in range(1, 9)],
            [self._new_product() for _ in range(60)],
            [self._new_customer() for _ in range(80)],
        ]

    def next(self) -> Transaction:
        """Returns the next transaction, which has one to four statements. No statement needs the result of another one."""
        return self._draw.choice(self._kinds)()

    def _weights(self) -> list[tuple[Callable[[], Transaction], int]]:
        return [
            (self._place_order, 20),
            (self._browse, 14),
            (self._advance_order, 16),
            (self._register, 5),
            (self._edit_customer, 8),
            (self._restock, 10),
            (self._fill_cart, 8),
            (self._replace_cart, 3),
            (self._reprice, 5),
            (self._rename_product, 2),
            (self._swap_categories, 2),
            (self._drop_order, 2),
            (self._start_sale, 2),
            (self._forget_views, 1),
            (self._correct_views, 1),
            (self._move_order_line, 1),
            *(((self._revisit, 4), (self._forget_visit, 1), (self._renumber_visit, 1)) if self.shop.visits else ()),
        ]

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _new_category(self, number: int) -> Statement:
        self.shop.categories.append(number)
        return _insert("categories", id=number, name=text(self._draw, 2), shelf=self._draw.randrange(256))

    def _new_product(self) -> Statement:
        draw, sku = self._draw, f"SKU-{self._id()}"
        self.shop.products.append(sku)
        return _insert(
            "products",
            sku=sku,
            category_id=draw.choice(self.shop.categories),
            title=text(draw, 4),
            description=maybe(draw, text(draw, 60)),
            price=abs(money(draw, 900)),
            weight_kg=maybe(draw, draw.random() * 40),
            image=maybe(draw, draw.randbytes(draw.randrange(300))),
            digest=draw.randbytes(12),
            active=draw.randrange(2),
            flags=draw.randrange(1 << 12),
            launched=maybe(draw, draw.randrange(1990, 2030)),
            attributes=maybe(draw, document(draw)),
        )

    def _new_customer(self) -> Statement:
        draw, key = self._draw, self._id()
        self.shop.customers.append(key)
        added = {"loyalty_points": maybe(draw, draw.randrange(1 << 32))} if self.shop.has_added_column else {}
        return _insert(
            "customers",
            id=key,
            email=f"{key}@example.com",
            name=text(draw, 2),
            birthday=maybe(draw, day(draw)),
            tier=draw.choice(("basic", "silver", "gold")),
            interests=",".join(word for word in ("books", "music", "garden", "tools") if draw.random() < 0.4),
            balance=money(draw, 100_000),
            settings=maybe(draw, document(draw)),
            created_at=maybe(draw, moment(draw)),
            updated_at=moment(draw),
            **added,
        )

    def _place_order(self) -> Transaction:
        draw, shop, key = self._draw, self.shop, self._id()
        shop.orders.append(key)
        order = _insert(
            "orders",
            id=key,
            customer_id=draw.choice(shop.customers),
            status="new",
            total=abs(money(draw, 5000)),
            placed_at=moment(draw),
            paid_at=None,
            priority=draw.randrange(-128, 128),
            note=maybe(draw, text(draw, 8)),
        )
        lines = range(1, draw.randrange(2, 6))
        return [order, _insert_many("order_items", [self._order_item(key, line) for line in lines])]

    def _order_item(self, order: int, line: int) -> dict[str, Any]:
        draw = self._draw
        price, discount = abs(money(draw, 900)), draw.randrange(100) / 300
        sku, quantity = draw.choice(self.shop.products), draw.randrange(1, 9)
        return {
            "order_id": order,
            "line": line,
            "sku": sku,
            "quantity": quantity,
            "price": price,
            "discount": discount,
        }

    def _browse(self) -> Transaction:
        draw = self._draw
        views = [
            {
                "customer_id": maybe(draw, draw.choice(self.shop.customers)),
                "url": f"/product/{draw.choice(self.shop.products)}",
                "duration_ms": draw.randrange(1 << 24),
                "score": draw.randrange(1000) / 7,
                "viewed_at": moment(draw),
            }
            for _ in range(draw.randrange(1, 7))
        ]
        return [_insert_many("page_views", views)]

    def _advance_order(self) -> Transaction:
        draw, shop = self._draw, self.shop
        if not shop.orders:
            return self._place_order()
        order, kind = draw.choice(shop.orders), draw.randrange(3)
        status = ("paid", "sent", "done")[kind]
        changed: Statement = (
            "UPDATE shop.orders SET status = %s, paid_at = %s, total = total + 1 WHERE id = %s",
            (status, maybe(draw, moment(draw)), order),
        )
        return [changed, *(self._pay(order), self._ship(order), self._deliver(order))[kind]]

    def _pay(self, order: int) -> Transaction:
        draw, key = self._draw, self._id()
        self.shop.payments.append(key)
        values = {
            "method": draw.choice(("card", "transfer", "cash")),
            "amount": money(draw, 5000),
            "captured": draw.randrange(-1, 3),
            "paid_at": moment(draw),
            "receipt": maybe(draw, document(draw)),
            "signature": maybe(draw, draw.randbytes(draw.randrange(65))),
        }
        return [_insert("payments", id=key, order_id=order, **values)]

    def _ship(self, order: int) -> Transaction:
        draw, key = self._draw, self._id()
        self.shop.shipments.append(key)
        values = {
            "carrier": text(draw, 1),
            "weight_kg": maybe(draw, draw.random() * 90),
            "handling": duration(draw),
            "waited": maybe(draw, duration(draw)),
            "picked_at": maybe(draw, moment(draw)),
            "delivered_on": None,
        }
        return [_insert("shipments", id=key, order_id=order, **values)]

    def _deliver(self, order: int) -> Transaction:
        delivered = maybe(self._draw, day(self._draw))
        return [("UPDATE shop.shipments SET delivered_on = %s WHERE order_id = %s", (delivered, order))]

    def _register(self) -> Transaction:
        draw, key = self._draw, self._id()
        customer = self._new_customer()
        self.shop.addresses.append(key)
        address = _insert(
            "addresses",
            id=-key,
            customer_id=self.shop.customers[-1],
            kind=draw.choice(("home", "work", "other")),
            street=text(draw, 5),
            city=text(draw, 1),
            postcode=str(draw.randrange(100_000)),
            latitude=maybe(draw, draw.uniform(-90, 90)),
            longitude=maybe(draw, draw.uniform(-180, 180)),
        )
        return [customer, address]

    def _edit_customer(self) -> Transaction:
        draw, shop = self._draw, self.shop
        added = f", loyalty_points = {draw.randrange(1000)}" if shop.has_added_column else ""
        sql = f"UPDATE shop.customers SET tier = %s, settings = %s, balance = balance * -1, updated_at = %s{added}"
        values = (
            draw.choice(("basic", "gold")),
            maybe(draw, document(draw)),
            moment(draw),
            draw.choice(shop.customers),
        )
        return [(f"{sql} WHERE id = %s", values)]

    def _restock(self) -> Transaction:
        moved = [self._movement() for _ in range(self._draw.randrange(1, 12))]
        return [_insert_many("stock_movements", moved)]

    def _movement(self) -> dict[str, Any]:
        draw, key = self._draw, self._id()
        self.shop.stock_movements.append(key)
        return {
            "id": key,
            "sku": draw.choice(self.shop.products),
            "quantity": draw.randrange(-(1 << 23), 1 << 23),
            "delta": draw.randrange(-(1 << 15), 1 << 15),
            "moved_at": maybe(draw, moment(draw)),
            "reason": maybe(draw, text(draw, 2)),
        }

    def _fill_cart(self) -> Transaction:
        draw, shop = self._draw, self.shop
        if len(shop.carts) > 40:
            cart = draw.choice(shop.carts)
            return [("UPDATE shop.carts SET contents = %s WHERE id = %s", (document(draw), cart))]
        key = self._id()
        shop.carts.append(key)
        return [self._cart(key)]

    def _cart(self, key: int) -> Statement:
        draw = self._draw
        customer = draw.choice(self.shop.customers)
        return _insert("carts", id=key, customer_id=customer, contents=document(draw), updated_at=moment(draw))

    def _replace_cart(self) -> Transaction:
        """Returns a transaction that deletes a row and, in seven of ten cases, inserts a row with the same key again."""
        if not self.shop.carts:
            return self._fill_cart()
        cart = self._draw.choice(self.shop.carts)
        gone: Statement = ("DELETE FROM shop.carts WHERE id = %s", (cart,))
        if self._draw.random() < 0.3:
            self.shop.carts.remove(cart)
            return [gone]
        return [gone, self._cart(cart)]

    def _reprice(self) -> Transaction:
        draw = self._draw
        skus = tuple(draw.sample(self.shop.products, 5))
        marks = ", ".join(["%s"] * len(skus))
        sql = f"UPDATE shop.products SET price = %s, active = 1 - active WHERE sku IN ({marks})"
        return [(sql, (abs(money(draw, 900)), *skus))]

    def _rename_product(self) -> Transaction:
        """Returns a transaction that changes the primary key of a row."""
        index, new = self._draw.randrange(len(self.shop.products)), f"SKU-{self._id()}"
        old, self.shop.products[index] = self.shop.products[index], new
        return [("UPDATE shop.products SET sku = %s WHERE sku = %s", (new, old))]

    def _swap_categories(self) -> Transaction:
        """Returns a transaction that swaps the primary keys of two rows."""
        one, two = self._draw.sample(self.shop.categories, 2)
        sql = "UPDATE shop.categories SET id = %s WHERE id = %s"
        return [(sql, (-1, one)), (sql, (one, two)), (sql, (two, -1))]

    def _drop_order(self) -> Transaction:
        if len(self.shop.orders) < 10:
            return self._place_order()
        order = self.shop.orders.pop(self._draw.randrange(len(self.shop.orders)))
        tables = ("order_items", "payments", "shipments")
        dropped: Transaction = [(f"DELETE FROM shop.{table} WHERE order_id = %s", (order,)) for table in tables]
        return [*dropped, ("DELETE FROM shop.orders WHERE id = %s", (order,))]

    def _start_sale(self) -> Transaction:
        draw, key = self._draw, self._id()
        self.shop.flash_sales.append(key)
        sku, percent = draw.choice(self.shop.products), draw.randrange(100)
        return [_insert("flash_sales", id=key, sku=sku, percent_off=percent, starts_at=moment(draw))]

    def _forget_views(self) -> Transaction:
        customer = self._draw.choice(self.shop.customers)
        return [("DELETE FROM shop.page_views WHERE customer_id = %s", (customer,))]

    def _correct_views(self) -> Transaction:
        customer = self._draw.choice(self.shop.customers)
        return [("UPDATE shop.page_views SET score = score / 3 WHERE customer_id = %s", (customer,))]

    def _revisit(self) -> Transaction:
        sql = "UPDATE shop.visits SET seconds = seconds + 1, rating = 9.5 WHERE id = %s"
        return [(sql, (self._draw.randint(1, self.shop.visits),))]

    def _forget_visit(self) -> Transaction:
        return [("DELETE FROM shop.visits WHERE id = %s", (self._draw.randint(1, self.shop.visits),))]

    def _renumber_visit(self) -> Transaction:
        """Returns a transaction that gives a row a new key that is greater than all others. A snapshot then reads the row in a later chunk,
        even if it has already read the row under its old key.
        """
        key = self._draw.randint(1, self.shop.visits)
        return [("UPDATE shop.visits SET id = %s WHERE id = %s", (self.shop.visits + self._id(), key))]

    def _move_order_line(self) -> Transaction:
        """Returns a transaction that changes one column of a composite primary key, in all rows of an order."""
        if not self.shop.orders:
            return self._place_order()
        order = self._draw.choice(self.shop.orders)
        return [("UPDATE shop.order_items SET line = line + 100 WHERE order_id = %s AND line < 100", (order,))]


def _insert(table: str, **values: Any) -> Statement:
    return _insert_many(table, [values])


def _insert_many(table: str, rows: list[dict[str, Any]]) -> Statement:
    columns = list(rows[0])
    marks = f"({', '.join(['%s'] * len(columns))})"
    sql = f"INSERT INTO shop.{table} ({', '.join(columns)}) VALUES {', '.join([marks] * len(rows))}"
    return sql, tuple(row[column] for row in rows for column in columns)


def _integers(keys: Any) -> list[int]:
    """Returns the number in each key, for example 12 for 12 and for `SKU-12`. Returns an empty list if `keys` is not a list."""
    if not isinstance(keys, list):
        return []
    return [abs(key) if isinstance(key, int) else int(key.rpartition("-")[2]) for key in keys]

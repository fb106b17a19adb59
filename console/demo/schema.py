"""Defines the tables of the demo's shop, which use every common column type and kind of key."""

from __future__ import annotations

DATABASE = "shop"
# The traffic inserts a row into this table every MARKER_SECONDS. The demo measures with these rows how fresh the lake is.
MARKERS = "markers"
ADDED_COLUMN = "loyalty_points"  # The column that the traffic adds by ALTER TABLE.

TABLES: dict[str, str] = {
    "customers": """
        id INT UNSIGNED NOT NULL PRIMARY KEY,
        email VARCHAR(120) NOT NULL,
        name VARCHAR(80) NOT NULL,
        birthday DATE NULL,
        tier ENUM('basic', 'silver', 'gold') NOT NULL DEFAULT 'basic',
        interests SET('books', 'music', 'garden', 'tools') NOT NULL,
        balance DECIMAL(12,2) NOT NULL,
        settings JSON NULL,
        created_at TIMESTAMP(6) NULL,
        updated_at DATETIME(6) NOT NULL""",
    "addresses": """
        id BIGINT NOT NULL PRIMARY KEY,
        customer_id INT UNSIGNED NOT NULL,
        kind ENUM('home', 'work', 'other') NOT NULL,
        street TEXT NOT NULL,
        city VARCHAR(60) NOT NULL,
        postcode CHAR(8) NOT NULL,
        latitude DOUBLE NULL,
        longitude DOUBLE NULL""",
    "categories": """
        id SMALLINT NOT NULL PRIMARY KEY,
        name VARCHAR(60) NOT NULL,
        shelf TINYINT UNSIGNED NOT NULL""",
    "products": """
        sku VARCHAR(32) NOT NULL PRIMARY KEY,
        category_id SMALLINT NOT NULL,
        title VARCHAR(200) NOT NULL,
        description MEDIUMTEXT NULL,
        price DECIMAL(10,2) NOT NULL,
        weight_kg FLOAT NULL,
        image BLOB NULL,
        digest BINARY(16) NOT NULL,
        active BIT(1) NOT NULL,
        flags BIT(12) NOT NULL,
        launched YEAR NULL,
        attributes JSON NULL""",
    "orders": """
        id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
        customer_id INT UNSIGNED NOT NULL,
        status ENUM('new', 'paid', 'sent', 'done', 'lost') NOT NULL,
        total DECIMAL(14,2) NOT NULL,
        placed_at DATETIME(6) NOT NULL,
        paid_at TIMESTAMP NULL,
        priority TINYINT NOT NULL,
        note VARCHAR(255) NULL""",
    "order_items": """
        order_id BIGINT UNSIGNED NOT NULL,
        line SMALLINT UNSIGNED NOT NULL,
        sku VARCHAR(32) NOT NULL,
        quantity INT NOT NULL,
        price DECIMAL(10,2) NOT NULL,
        discount DOUBLE NOT NULL,
        PRIMARY KEY (order_id, line)""",
    "payments": """
        id BIGINT NOT NULL PRIMARY KEY,
        order_id BIGINT UNSIGNED NOT NULL,
        method ENUM('card', 'transfer', 'cash') NOT NULL,
        amount DECIMAL(14,2) NOT NULL,
        captured TINYINT(1) NOT NULL,
        paid_at TIMESTAMP(3) NULL,
        receipt JSON NULL,
        signature VARBINARY(64) NULL""",
    "shipments": """
        id INT NOT NULL PRIMARY KEY,
        order_id BIGINT UNSIGNED NOT NULL,
        carrier VARCHAR(40) NOT NULL,
        weight_kg FLOAT NULL,
        handling TIME NOT NULL,
        waited TIME(3) NULL,
        picked_at DATETIME NULL,
        delivered_on DATE NULL""",
    "carts": """
        id INT NOT NULL PRIMARY KEY,
        customer_id INT UNSIGNED NOT NULL,
        contents JSON NOT NULL,
        updated_at DATETIME(3) NOT NULL""",
    "stock_movements": """
        id BIGINT NOT NULL PRIMARY KEY,
        sku VARCHAR(32) NOT NULL,
        quantity MEDIUMINT NOT NULL,
        delta SMALLINT NOT NULL,
        moved_at TIMESTAMP(6) NULL,
        reason TINYTEXT NULL""",
    "flash_sales": """
        id INT NOT NULL PRIMARY KEY,
        sku VARCHAR(32) NOT NULL,
        percent_off TINYINT UNSIGNED NOT NULL,
        starts_at DATETIME NOT NULL""",
    "page_views": """
        customer_id INT UNSIGNED NULL,
        url VARCHAR(200) NOT NULL,
        duration_ms MEDIUMINT UNSIGNED NOT NULL,
        score FLOAT NOT NULL,
        viewed_at DATETIME(3) NOT NULL""",
    MARKERS: """
        id BIGINT NOT NULL PRIMARY KEY,
        sent_at DATETIME(6) NOT NULL""",
}


VISITS = "visits"  # The first rows of this table are in no binlog file, so a snapshot must read them.
VISITS_BODY = """
        id INT UNSIGNED NOT NULL PRIMARY KEY AUTO_INCREMENT,
        customer_id INT UNSIGNED NOT NULL,
        url VARCHAR(120) NOT NULL,
        seconds MEDIUMINT UNSIGNED NOT NULL,
        rating DECIMAL(4,2) NOT NULL,
        visited_at DATETIME(3) NOT NULL"""
VISITS_FIRST = 1000
VISITS_AT_ONCE = 500_000  # The most rows that one INSERT adds.


def old_statements(rows: int) -> list[str]:
    """Returns the statements that create the table `visits` with `rows` rows, but with at least VISITS_FIRST rows. These statements must be
    executed once, before the table is captured. The binlog must be off, so that the rows come into the lake only by the initial snapshot.
    """
    name, columns = f"{DATABASE}.{VISITS}", "customer_id, url, seconds, rating, visited_at"
    first = (
        f"INSERT INTO {name} ({columns}) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {VISITS_FIRST}) "
        "SELECT i % 97, CONCAT('/p/', MD5(i)), i % 3600, i % 50 / 10, '2026-01-01 00:00:00.125' + INTERVAL i MINUTE FROM n"
    )
    made = [f"CREATE TABLE {name} ({VISITS_BODY}\n)", first]
    filled = VISITS_FIRST
    while filled < rows:
        more = min(filled, rows - filled, VISITS_AT_ONCE)
        made.append(
            f"INSERT INTO {name} ({columns}) SELECT customer_id + 1, url, seconds + 1, rating, visited_at + INTERVAL 1 SECOND "
            f"FROM {name} LIMIT {more}"
        )
        filled += more
    return [*made, f"ANALYZE LOCAL TABLE {name}"]


def create_database_statement() -> str:
    return f"CREATE DATABASE IF NOT EXISTS {DATABASE} DEFAULT CHARACTER SET utf8mb4"


def create_statements() -> list[str]:
    """Returns the statements that create the tables of the shop. The statements do not change tables that exist already."""
    return [f"CREATE TABLE IF NOT EXISTS {DATABASE}.{name} ({body}\n)" for name, body in TABLES.items()]


def add_column_statement() -> str:
    """Returns the ALTER TABLE by which the traffic adds ADDED_COLUMN to the table `customers`, once per demo."""
    return f"ALTER TABLE {DATABASE}.customers ADD COLUMN {ADDED_COLUMN} INT UNSIGNED NULL"

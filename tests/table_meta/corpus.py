"""Provides statements in many spellings, for every test that compares how Sluice reads a statement with what a real server made of it."""

from __future__ import annotations

CREATES = (
    "CREATE TABLE nowhere (x int primary key)",
    (
        "CREATE TABLE numbers (a int unsigned zerofill, b tinyint(1), c bool, d tinyint, e bigint(20) unsigned, f decimal, "
        "g dec(5,2) unsigned, h fixed(5), i float, j float(7,3), k float(30), l double(10,2), m real unsigned, n bit, o bit(9), "
        "p year(4), q numeric(3), r int1, s int2, t int3, u int4, v int8, w middleint, x float4, y float8, z double precision)"
    ),
    (
        "CREATE TABLE strings (a char, b char(10), c varchar(5) character set latin1, d national varchar(7), e nchar(3), f char byte, "
        "g varchar(9) character set binary, h text charset binary, i long varchar, j long varbinary, k text(100), l blob(70000), "
        "m tinytext, n longblob, o binary, p varbinary(5), q text(17000000), r char(4) charset binary, s character varying(3), "
        "t char(255), u varchar(300), v nvarchar(4), w char(3) ascii, x varchar(3) unicode, "
        "y char(4) collate utf8mb4_bin, z char(3) binary)"
    ),
    r"""CREATE TABLE labels (a enum('a','it''s','b\'c','d\\e','f\ng','h"i',''), b set('x','y y','''') not null,
    c enum('z') character set binary, d set('1','2','3','4','5','6','7','8','9'), e enum("q","p") charset latin1 default 'p',
    f enum('trailing  ','b'), g enum('ж','é') charset ucs2, h set('ä','ß') charset latin1)""",
    (
        "CREATE TABLE times (a date, b time, c time(3), d datetime, e datetime(6) default now(6) on update now(6), f timestamp null, "
        "g timestamp(2) null default current_timestamp(2) on update current_timestamp(2), h json, i geometry, j point not null, "
        "k geometrycollection, l multipolygon, m linestring, n polygon, o multipoint, p multilinestring)"
    ),
    (
        "CREATE TABLE serials (a serial, b int generated always as (1+1) virtual comment 'x, y) z', c int as (f + 2) stored, "
        "d int references nowhere (x) on delete set null on update no action, e int check (e > 0), f int default -5 not null unique)"
    ),
    (
        "CREATE TABLE `od``d, name` (`my` int, `we``ird , x` int COMMENT 'it''s, (here', `ä` int, `key` int, `select` int, "
        "PRIMARY KEY USING BTREE (`ä`, MY DESC) COMMENT 'k')"
    ),
    "create table if not exists inline_key (id int not null auto_increment key, v varchar(3) default 'a,b')",
    (
        "CREATE TABLE indexes (a int, b varchar(20), c text, d point not null, UNIQUE KEY u (b(10)), key (a, b), fulltext (c), "
        "constraint cc check (a > 0), constraint uu unique (a), index using btree (b), spatial index (d), "
        "CONSTRAINT pk PRIMARY KEY (a, b(7))) engine=InnoDB default charset=latin1 collate latin1_bin comment='charset=ucs2'"
    ),
    "CREATE TABLE parts (a int, b varchar(5)) charset utf8mb3 partition by hash(a) partitions 4",
    "/* first */ CREATE -- second\n TABLE # third\n comments (a int /*!50701 , b varchar(3) */, c /* not int */ bigint)",
    "CREATE TABLE copied LIKE indexes",
    "CREATE TABLE copied_too (LIKE strings)",
    "CREATE TABLE binary_default (a varchar(3), b text, c char(2), d enum('x')) character set binary",
    "CREATE TABLE from_select AS SELECT 1 AS one, 'a' AS letter, now() AS moment",
    "CREATE TABLE grown (id int primary key)",
    "TRUNCATE grown",
)

# These statements are for the table `grown (id int primary key)`.
ALTERS = (
    (
        "ALTER TABLE grown ADD COLUMN a int UNSIGNED FIRST, ADD b varchar(10) charset latin1 AFTER ID, "
        "add (c int, d enum('x,y',')') not null)"
    ),
    "ALTER TABLE grown ADD z1 int FIRST, ADD z2 int FIRST, ADD z3 int AFTER z1",
    "ALTER TABLE grown ADD e varchar(3), DEFAULT CHARSET latin1, ADD f varchar(3)",
    "alter table grown add g varchar(9) not null default 'it''s, x' comment 'add h int, drop a' after `d`",
    (
        "ALTER TABLE grown ADD INDEX i (a), ADD UNIQUE KEY j (b(3), c), ENGINE=InnoDB, ADD h SET('p','q') COLLATE utf8mb4_bin, "
        "AUTO_INCREMENT=5 COMMENT='x' ROW_FORMAT=DYNAMIC, ALGORITHM=COPY, LOCK=SHARED"
    ),
    "ALTER TABLE grown DROP INDEX i, DROP KEY j, ALTER COLUMN c SET DEFAULT 7, ALTER a SET DEFAULT NULL, CHECKSUM=1, FORCE",
    "ALTER TABLE grown COLLATE utf8mb4_bin",
    "ALTER TABLE grown ADD k text, ADD l tinyblob, ADD m national char(3), ADD n binary(7), ADD o json",
    "ALTER TABLE grown ORDER BY a, b DESC",
    "ALTER TABLE grown DISABLE KEYS",
    "CREATE UNIQUE INDEX u ON grown (a)",
    "DROP INDEX u ON grown",
    "ANALYZE TABLE grown",
    "OPTIMIZE TABLE grown",
    "CREATE VIEW seen AS SELECT * FROM grown",
    "DROP VIEW seen",
    "CREATE TRIGGER fires BEFORE INSERT ON grown FOR EACH ROW SET NEW.c = 1",
    "CREATE PROCEDURE proceed() BEGIN INSERT INTO grown (id) VALUES (1); END",
    "DROP TABLE IF EXISTS never_was, nor_this",
    "ALTER TABLE grown PARTITION BY KEY (id) PARTITIONS 2",
    "ALTER TABLE grown REMOVE PARTITIONING",
)
MYSQL_ALTERS = (
    "ALTER TABLE grown ADD p int INVISIBLE AFTER a, ALGORITHM=INPLACE",
    "ALTER TABLE grown ADD KEY fx ((a + c))",
    "ALTER TABLE grown ADD q int /*!80023 INVISIBLE */, ADD r varchar(5) DEFAULT _utf8mb4'ä' COLLATE utf8mb4_0900_as_cs",
    "ALTER TABLE grown ALTER INDEX fx INVISIBLE",
    "ALTER TABLE grown RENAME INDEX fx TO fy",
)
MARIADB_ALTERS = (
    "ALTER TABLE grown ADD COLUMN IF NOT EXISTS p int INVISIBLE AFTER a, ADD COLUMN IF NOT EXISTS a bigint",
    "ALTER ONLINE TABLE grown ADD q varchar(90) COMPRESSED, ADD r text COMPRESSED=zlib, ADD s uuid, ADD t inet6, ADD u inet4",
    "SET STATEMENT max_statement_time=60 FOR ALTER TABLE grown WAIT 5 ADD v varchar(5) COLLATE uca1400_ai_ci",
    "ALTER TABLE grown ADD w int DEFAULT 0 CHECK (w in (0, 1)), ADD x varchar(9) /*M!100301 COMPRESSED*/",
)

/* before */ CREATE TABLE t (a int /* in between */, b int);
CREATE /* here */ TABLE /* there */ q1 (a int) /* behind */;
CREATE TABLE q2 (a int, -- to the end of the line
 b int);
CREATE TABLE q3 (a int, # to the end of the line, too )
 b int);
CREATE TABLE q4 (a int /*!40101 , b varchar(3) */);
CREATE TABLE q5 (a int /*! , b varchar(3) */);
CREATE TABLE q6 (a int /*!99999 , b varchar(3) */);
CREATE TABLE q7 (a int) /*!50100 PARTITION BY HASH (a) PARTITIONS 2 */;
/*!40000 ALTER TABLE t DISABLE KEYS */;
/*!50003 CREATE TABLE q8 (a int) */;
/*!40101 CREATE TABLE */ q9 (a int) /*!40101 CHARACTER SET latin1 */;
ALTER TABLE t /*!40101 ADD c int, */ ADD d int;
ALTER TABLE t ADD e int /*!99999 , ADD nope int */;
ALTER TABLE t ADD f int /* , ADD nope int */, ADD g varchar(3) DEFAULT '/* no comment */';
ALTER TABLE t ADD h varchar(9) DEFAULT '-- no', ADD i varchar(9) DEFAULT '# no';
ALTER TABLE t ADD `j -- x` int, ADD `k /* x */` int, ADD `l # x` int;
	ALTER
	TABLE
t
ADD
m
int;
alter table T add n int;
ALTER TABLE `t` ADD `o` INT, ADD COLUMN P int;
CREATE TABLE `quo``ted` (`a``b` int, `c'd` int, `e"f` int, PRIMARY KEY (`a``b`));
ALTER TABLE `quo``ted` CHANGE `c'd` `c``d` int, DROP `e"f`;
CREATE TABLE `1st` (`1` int, `2nd` int, 3rd int, `4e5` int);
ALTER TABLE `1st` ADD 5th int AFTER 3rd, CHANGE 2nd 2 int;
ALTER TABLE 1st ADD 5th int AFTER 3rd, CHANGE 2nd second int;
CREATE TABLE `with space` (`a b` int, ` ` int);
CREATE TABLE `with space` (`a b` int, ` lead` int);
CREATE TABLE `dot.ted` (`a.b` int);
ALTER TABLE `dot.ted` ADD `c.d` int AFTER `a.b`;
ALTER TABLE ddl_comments_and_quotes.`dot.ted` DROP `c.d`;
CREATE TABLE `semi;colon` (`a;b` int COMMENT 'c;d');
CREATE TABLE ünïcödé (ä int, `ß` varchar(3) DEFAULT 'ö');
CREATE TABLE `表` (`列` int, `キー` varchar(10) COMMENT '注釈');
ALTER TABLE `表` RENAME TO `テーブル`;
CREATE TABLE $dollar (a$b int, $c int, _d int);
CREATE TABLE `select` (`table` int, `create` int, `primary` int primary key, `default` int default 1);
ALTER TABLE `select` DROP `create`, MODIFY `table` bigint, ADD `order` int FIRST;
CREATE TABLE data (id int, action int, begin int, end int, data int, level int, name int, names int, no int, open int, text int, user int, value int);
CREATE TABLE status (checksum int, connection int, day int, duplicate int, enable int, engine int, event int, file int, hash int, help int, host int, hour int, local int, minute int);
CREATE TABLE type (mode int, month int, number int, offset int, only int, options int, partition_ int, plugin int, prev int, query int, quick int, role int, rows_ int, second int);
SET SESSION sql_mode = 'ANSI_QUOTES';
CREATE TABLE "ansi" ("a" int, "b""c" varchar(3) DEFAULT 'x"y', `d` enum('e','f"'), "select" int, PRIMARY KEY ("a"));
ALTER TABLE "ansi" ADD "g" int COMMENT 'h', DROP "select", CHANGE "b""c" "b" int;
SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES';
CREATE TABLE nbe (a varchar(9) DEFAULT '\', b enum('\','\\','n\n'), c int COMMENT 'x\');
ALTER TABLE nbe ADD d varchar(9) DEFAULT 'it''s\', ADD e int;
SET SESSION sql_mode = 'REAL_AS_FLOAT';
CREATE TABLE raf (a real, b double, c real(5,2), `real` int);
ALTER TABLE raf MODIFY a real NOT NULL, ADD d real;
SET SESSION sql_mode = 'ANSI';
CREATE TABLE "ansi2" ("a" real, "b" text DEFAULT NULL);
SET SESSION sql_mode = DEFAULT;
SET SESSION character_set_client = latin1;
ALTER TABLE t ADD latin_named int;
SET SESSION character_set_client = utf8mb4;
--@ mariadb114 mariadb1011
CREATE TABLE m1 (a int /*M! , b int */ /*M!100301 , c varchar(9) COMPRESSED */ /*M!999999 , d int */);
CREATE TABLE m2 (a int /*!50701 , b int */ /*!80023 , c int */ /*!100100 , d int */);
ALTER TABLE m2 ADD e int /*M!100000 INVISIBLE */, ADD f int /*!80023 INVISIBLE */;
--@ mysql80 mysql57
CREATE TABLE m1 (a int /*M! , b int */ /*M!100301 , c varchar(9) */ /*M!999999 , d int */);
CREATE TABLE m2 (a int /*!50701 , b int */ /*!80023 , c int */ /*!100100 , d int */);
--@ mysql80
CREATE TABLE m3 (a int, b int /*!80023 INVISIBLE */, c int /*!80016 CHECK (c > 0) */);
CREATE TABLE m4 (a int /*!080023 , b int */, c int);

CREATE TABLE `20151214` (a int);
CREATE TABLE `1e5` (a int);
CREATE TABLE `0x12` (a int);
ALTER TABLE ddl_names.20151214 ADD b int;
ALTER TABLE ddl_names.1e5 ADD b int, ADD c int AFTER a;
ALTER TABLE ddl_names.0x12 ADD b varchar(3) DEFAULT '1.5';
CREATE TABLE ddl_names.00 (a int);
CREATE TABLE 1a (a int, 1b int, 2$ int);
CREATE TABLE 0x1g (a int);
CREATE TABLE 0x12$ (a int);
CREATE TABLE 1e (a decimal(5, 2) DEFAULT 1.5, b float DEFAULT .5, c double DEFAULT 1e3);
RENAME TABLE ddl_names.1e5 TO ddl_names.20151215, ddl_names.00 TO `1e5`;
DROP TABLE ddl_names.20151214, ddl_names.0x12;
ALTER TABLE 1a ADD 1a.20 int;
ALTER TABLE 1a ADD ddl_names.1a.c int FIRST;
CREATE TABLE  nb (a int,  b int, c  int);
ALTER TABLE  nb DROP  b, ADD ` d` int;
CREATE TABLE `order-items` (`a b` int, `c.d` int);
TRUNCATE `order-items`;
CREATE TABLE 　wide ( em int, nel int);
ALTER TABLE 1a ADD (d int, KEY (d)), ADD /*!50001 e int, ADD */ f int;
ALTER TABLE 1a ADD g int /*!500011 , ADD h int */;
ALTER TABLE 1a ADD i int /*!50000, ADD 1j int */, ADD k int;
ALTER TABLE 1a ADD /*!50000 1l */ int;
ALTER TABLE 1a ADD /*!500001m */ int;
ALTER TABLE 1a ADD n int /*! , ADD 0o int */;
ALTER TABLE 1a ADD o int /*M!100000 , ADD p int */;
ALTER TABLE 1a ADD q int /*!100100 , ADD r int */;
ALTER TABLE 1a ADD s int /*!040101, ADD t int */;
ALTER TABLE 1a ADD u int -- a comment
, ADD v int;
SET sql_mode = 'ANSI_QUOTES';
CREATE TABLE "a\b" ("c\" int, "d""e" int, f varchar(10) DEFAULT 'x\'y');
ALTER TABLE "a\b" ADD "g\n" int, ADD `h\` int;
SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES';
CREATE TABLE "a\c" ("c\" int, f varchar(10) DEFAULT 'x\', g int);
ALTER TABLE "a\c" RENAME "a\d";
SET sql_mode = 'NO_BACKSLASH_ESCAPES';
CREATE TABLE ne (a enum('x\', "y\"), b int);
SET sql_mode = DEFAULT;
--@client latin1
CREATE TABLE blank (a int);
ALTER TABLE blank ADD  b int, ADD ` c` int, ADD é int;
--@client cp866
ALTER TABLE blank ADD ж int, ADD ` d` int;
--@client cp1251
ALTER TABLE blank ADD ж2  int;
--@client utf8mb4
--@ mariadb114 mariadb1011
SET sql_mode = 'ORACLE';
TRUNCATE TABLE `order-items`;
ALTER TABLE `order-items` DROP `a b`;
DROP TABLE "a\d";
RENAME TABLE `order-items` TO "order items";
SET sql_mode = DEFAULT;
ALTER TABLE `order items` ADD e int;
--@ all
CREATE TABLE q (a int, b int, c int DEFAULT 3, d int, e int, PRIMARY KEY (a));
ALTER TABLE q DROP q.b;
ALTER TABLE q DROP COLUMN ddl_names.q.c;
ALTER TABLE q CHANGE q.d q.dd bigint;
ALTER TABLE q CHANGE ddl_names.q.e f int FIRST;
ALTER TABLE q ALTER q.f SET DEFAULT 7;
ALTER TABLE q ALTER COLUMN ddl_names.q.f SET DEFAULT 8, MODIFY q.f bigint DEFAULT 9;
ALTER TABLE q MODIFY .f bigint NOT NULL;
ALTER TABLE .q ADD .g int AFTER f;
ALTER TABLE q ADD h int AFTER q.f;
ALTER TABLE q RENAME COLUMN q.f TO z;
ALTER TABLE q ALTER .f DROP DEFAULT, DROP .g;
CREATE TABLE .q2 (.a int, KEY (a));
CREATE TABLE q3 (q3.a int, ddl_names.q3.b int, UNIQUE (q3.a));
CREATE TABLE q3 (q3.a int, ddl_names.q3.b int, UNIQUE (a));
CREATE TABLE q4 (id int PRIMARY KEY, b int, CONSTRAINT q4f FOREIGN KEY (id) REFERENCES .q (a) ON DELETE CASCADE);
ALTER TABLE q4 DROP FOREIGN KEY q4.q4f;
RENAME TABLE .q2 TO .q5;
TRUNCATE .q5;
CREATE TABLE q6 LIKE .q5;
DROP TABLE .q5;
DROP INDEX `PRIMARY` ON q;
ALTER TABLE q4 DROP CONSTRAINT PRIMARY KEY;
ALTER TABLE q4 ADD CONSTRAINT PRIMARY KEY (b);
ALTER TABLE q4 DROP CONSTRAINT `PRIMARY`;

CREATE TABLE l (a enum('é', 'x') CHARSET latin1, b enum('😀', 'y') CHARSET utf8mb3, c set('ж', 'z') CHARSET latin1);
CREATE TABLE d (a varchar(5) CHARSET latin1 DEFAULT 'é', b varchar(5) CHARSET utf8mb4 DEFAULT '😀');
ALTER TABLE l ADD d enum('一', 'é', 'ß') CHARSET latin2, ADD e enum('€') CHARSET latin1, ADD f set('Ω', '가') CHARSET greek;
ALTER TABLE l MODIFY a enum('é', 'x', 'ж') CHARSET latin1, CHANGE b bb enum('y', '😀é') CHARSET ucs2;
CREATE TABLE c1 (a enum('é', 'x') CHARSET utf8mb4, b set('ж', 'q') CHARSET utf8mb4);
ALTER TABLE c1 CONVERT TO CHARACTER SET latin1;
CREATE TABLE c2 (a enum('é', 'x') CHARSET utf8mb4);
ALTER TABLE c2 CONVERT TO CHARACTER SET utf8mb3;
CREATE TABLE c3 (a enum('é', 'x') CHARSET utf8mb4, b varchar(5) CHARSET ascii);
ALTER TABLE c3 CONVERT TO CHARACTER SET cp1251;
CREATE TABLE c4 (a enum('é', 'b') CHARSET latin1, b int);
ALTER TABLE c4 MODIFY a enum('é', 'b') CHARSET utf8mb4, ADD c varchar(3) CHARSET utf8mb4, CONVERT TO CHARACTER SET latin2;
CREATE TABLE c5 (a enum('é', 'b') CHARSET utf8mb4);
ALTER TABLE c5 CONVERT TO CHARACTER SET binary;
SET NAMES utf8mb3;
CREATE TABLE n1 (a enum('😀', 'x') CHARSET utf8mb4, b int);
SET NAMES utf8mb4;
SET collation_connection = latin1_swedish_ci;
CREATE TABLE n2 (a enum('ж', 'x') CHARSET utf8mb4, b varchar(3) CHARSET utf8mb4 DEFAULT 'ж', ж int);
SET collation_connection = binary;
CREATE TABLE n3 (a enum('é', 'x') CHARSET latin1, b enum('xy', 'é') CHARSET utf8mb4, ж int);
--@ mysql80 mariadb114 mariadb1011
SET collation_connection = utf32_general_ci;
CREATE TABLE n5 (a enum('a', 'b') CHARACTER SET binary, b int);
SET collation_connection = ucs2_general_ci;
ALTER TABLE n5 ADD c set('x', 'yz') CHARACTER SET binary, ADD d enum('é', 'b') CHARSET latin1;
SET collation_connection = latin1_swedish_ci;
ALTER TABLE n5 ADD e enum('x', 'b') CHARACTER SET binary;
SET NAMES utf8mb4;
ALTER TABLE n5 ADD f enum('é', 'b') CHARACTER SET binary;
--@ all
SET NAMES binary;
CREATE TABLE n4 (a enum('é', 'x') CHARSET latin1, ж int);
ALTER TABLE n4 ADD b enum('é', 'x') CHARSET utf8mb4, ADD c set('x', 'yz') CHARSET ucs2, ADD d varchar(9) CHARSET utf8mb4 DEFAULT 'é';
FLUSH TABLES;
SET NAMES utf8mb4;
--@client latin1
ALTER TABLE l ADD g1 enum('', 'é') CHARSET utf8mb4, ADD é int;
--@client dec8
ALTER TABLE l ADD g2 enum('Œ', 'é') CHARSET utf8mb4, ADD h2é int;
--@client hp8
ALTER TABLE l ADD g3 enum('é', 'Ñ') CHARSET utf8mb4, ADD h3é int;
--@client swe7
ALTER TABLE l ADD g4 enum('Ä', 'å') CHARSET utf8mb4;
--@client armscii8
ALTER TABLE l ADD g5 enum('Ա') CHARSET utf8mb4, ADD Ա int;
--@client keybcs2
ALTER TABLE l ADD g6 enum('Č') CHARSET utf8mb4, ADD h6Č int;
--@client macce
ALTER TABLE l ADD g7 enum('Č') CHARSET utf8mb4, ADD h7Č int;
--@client macroman
ALTER TABLE l ADD g8 enum('é') CHARSET utf8mb4, ADD h8é int;
--@client geostd8
ALTER TABLE l ADD g9 enum('ა') CHARSET utf8mb4, ADD ა int;
--@client eucjpms
ALTER TABLE l ADD ga enum('日本～', '①') CHARSET utf8mb4, ADD 日本 int;
--@client ujis
ALTER TABLE l ADD gb enum('日本', 'ソ') CHARSET utf8mb4, ADD 表示 int;
--@client sjis
ALTER TABLE l ADD gc enum('ソ表', '能') CHARSET utf8mb4, ADD ソ int;
--@client cp932
ALTER TABLE l ADD gd enum('ソ表', '①') CHARSET utf8mb4, ADD ソ2 int;
--@client big5
ALTER TABLE l ADD ge enum('功許', '蓋') CHARSET utf8mb4, ADD 功 int;
--@client gbk
ALTER TABLE l ADD gf enum('誠', '縗') CHARSET utf8mb4, ADD 誠 int;
--@client euckr
ALTER TABLE l ADD gg enum('똠방', '가') CHARSET utf8mb4, ADD 똠 int;
--@client cp866
ALTER TABLE l ADD gh enum('№', 'ж') CHARSET utf8mb4, ADD h10ж int;
--@client greek
ALTER TABLE l ADD gi enum('Ω', 'ʽ') CHARSET utf8mb4, ADD h11Ω int;
--@client koi8r
ALTER TABLE l ADD gj enum('ж') CHARSET utf8mb4, ADD h12ж int;
--@client tis620
ALTER TABLE l ADD gk enum('ก') CHARSET utf8mb4, ADD ก int;
--@client gb2312
ALTER TABLE l ADD gl enum('汉') CHARSET utf8mb4, ADD 汉 int;
--@client utf8mb4
CREATE DATABASE ddl_other COLLATE latin1_bin;
CREATE TABLE ddl_other.t (a varchar(3), b enum('é'));
DROP DATABASE ddl_other;
SET collation_server = cp1251_general_ci;
CREATE DATABASE ddl_other;
CREATE TABLE ddl_other.t (a varchar(3), b enum('ж', 'é'));
SET collation_server = DEFAULT;
DROP DATABASE ddl_other;
--@ mariadb114
SET character_set_collations = 'utf8mb4=utf8mb4_uca1400_ai_ci,latin1=latin1_bin';
CREATE TABLE mc (a varchar(3) CHARSET utf8mb4, b enum('é'));
SET collation_connection = latin1_swedish_ci;
ALTER TABLE mc ADD c enum('ж') CHARSET utf8mb4;
SET character_set_collations = '';
SET NAMES utf8mb4;
--@ mysql57 mariadb1011 mariadb114
ALTER DATABASE CHARACTER SET latin1;
SET collation_server = koi8r_general_ci;
ALTER DATABASE CHARACTER SET DEFAULT;
CREATE TABLE dbd1 (a varchar(3));
SET collation_server = greek_general_ci;
ALTER DATABASE COLLATE = DEFAULT;
CREATE TABLE dbd2 (a varchar(3));
ALTER DATABASE DEFAULT CHARACTER SET = latin2 COLLATE DEFAULT;
CREATE TABLE dbd3 (a varchar(3));
SET collation_server = DEFAULT;
ALTER DATABASE CHARACTER SET utf8mb4;
--@ all

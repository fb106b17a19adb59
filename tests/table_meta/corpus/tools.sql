/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;
/*!40014 SET @OLD_FOREIGN_KEY_CHECKS=@@FOREIGN_KEY_CHECKS, FOREIGN_KEY_CHECKS=0 */;
/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;
DROP TABLE IF EXISTS `t1`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!50503 SET character_set_client = utf8mb4 */;
CREATE TABLE `t1` (
  `id` bigint(20) unsigned NOT NULL AUTO_INCREMENT,
  `a` varchar(255) COLLATE utf8mb4_unicode_ci DEFAULT NULL COMMENT 'it''s; a, (comment)',
  `b` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  `c` enum('x','y') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'x',
  PRIMARY KEY (`id`),
  KEY `k` (`a`(191)) USING BTREE
) ENGINE=InnoDB AUTO_INCREMENT=5 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci ROW_FORMAT=DYNAMIC COMMENT='x; y';
/*!40000 ALTER TABLE `t1` DISABLE KEYS */;
/*!40000 ALTER TABLE `t1` ENABLE KEYS */;
CREATE TABLE `ddl_tools`.`_t1_new` (
  `id` bigint(20) unsigned NOT NULL AUTO_INCREMENT,
  `a` varchar(255) COLLATE utf8mb4_unicode_ci DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
ALTER TABLE `ddl_tools`.`_t1_new` ADD COLUMN n int not null default 3, ALGORITHM=INPLACE, LOCK=NONE;
CREATE TRIGGER `pt_osc_x_del` AFTER DELETE ON `ddl_tools`.`t1` FOR EACH ROW BEGIN DECLARE CONTINUE HANDLER FOR 1146 begin end; DELETE IGNORE FROM `ddl_tools`.`_t1_new` WHERE `ddl_tools`.`_t1_new`.`id` <=> OLD.`id`; END;
RENAME TABLE `ddl_tools`.`t1` TO `ddl_tools`.`_t1_old`, `ddl_tools`.`_t1_new` TO `ddl_tools`.`t1`;
DROP TABLE IF EXISTS `ddl_tools`.`_t1_old`;
create /* gh-ost */ table `ddl_tools`.`_t1_ghc` (
			id bigint unsigned auto_increment,
			last_update timestamp not null DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
			hint varchar(64) charset ascii not null,
			value varchar(4096) charset ascii not null,
			primary key(id),
			unique key hint_uidx(hint)
		) auto_increment=256 comment='ghc_cut_over';
create /* gh-ost */ table `ddl_tools`.`_t1_gho` like `ddl_tools`.`t1`;
alter /* gh-ost */ table `ddl_tools`.`_t1_gho` add column z json, auto_increment=77;
create /* gh-ost */ table `ddl_tools`.`_t1_del` (
			id int auto_increment primary key
		) engine=InnoDB comment='ghost-cut-over-sentry';
drop /* gh-ost */ table if exists `ddl_tools`.`_t1_del`;
rename /* gh-ost */ table `ddl_tools`.`t1` to `ddl_tools`.`_t1_del`, `ddl_tools`.`_t1_gho` to `ddl_tools`.`t1`;
drop /* gh-ost */ table if exists `ddl_tools`.`_t1_del`;
rename /*vt+ */ table `ddl_tools`.`t1` to `_vt_HOLD_6ace8bcef73211ea87e9f875a4d24e90_20200915120410`;
rename table _vt_HOLD_6ace8bcef73211ea87e9f875a4d24e90_20200915120410 to t1;
CREATE TABLE `django_migrations` (`id` bigint AUTO_INCREMENT NOT NULL PRIMARY KEY, `app` varchar(255) NOT NULL, `name` varchar(255) NOT NULL, `applied` datetime(6) NOT NULL);
ALTER TABLE `django_migrations` ADD COLUMN `uuid` char(32) DEFAULT '0' NOT NULL;
ALTER TABLE `django_migrations` ALTER COLUMN `uuid` DROP DEFAULT;
ALTER TABLE `django_migrations` MODIFY `name` varchar(100) NULL;
ALTER TABLE `django_migrations` ADD CONSTRAINT `u_c` UNIQUE (`app`, `name`);
ALTER TABLE `django_migrations` CHANGE `app` `application` varchar(255) NOT NULL;
CREATE INDEX `dm_idx` ON `django_migrations` (`application`);
ALTER TABLE `django_migrations` ADD COLUMN `price_check` integer UNSIGNED DEFAULT 1 NOT NULL CHECK (`price_check` >= 0);
ALTER TABLE `django_migrations` ADD CONSTRAINT `chk` CHECK (`price_check` > 0);
CREATE TABLE `schema_migrations` (`version` varchar(255) NOT NULL PRIMARY KEY);
CREATE TABLE `ar_internal_metadata` (`key` varchar(255) NOT NULL PRIMARY KEY, `value` varchar(255), `created_at` datetime(6) NOT NULL, `updated_at` datetime(6) NOT NULL);
ALTER TABLE `schema_migrations` ADD `t_id` bigint, ADD INDEX `index_on_t`  (`t_id`), ADD CONSTRAINT `fk_rails_1` FOREIGN KEY (`t_id`) REFERENCES `django_migrations` (`id`);
ALTER TABLE `schema_migrations` ADD `active` tinyint(1) DEFAULT TRUE NOT NULL AFTER `version`;
ALTER TABLE `schema_migrations` DROP FOREIGN KEY `fk_rails_1`, DROP INDEX `index_on_t`, DROP COLUMN t_id;
CREATE TABLE `flyway_schema_history` (
    `installed_rank` INT NOT NULL,
    `version` VARCHAR(50),
    `description` VARCHAR(200) NOT NULL,
    `type` VARCHAR(20) NOT NULL,
    `script` VARCHAR(1000) NOT NULL,
    `checksum` INT,
    `installed_by` VARCHAR(100) NOT NULL,
    `installed_on` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    `execution_time` INT NOT NULL,
    `success` BOOL NOT NULL,
    CONSTRAINT `flyway_schema_history_pk` PRIMARY KEY (`installed_rank`)
) ENGINE=InnoDB AS SELECT
         1 as "installed_rank",
         '1' as "version",
         '<< Flyway Baseline >>' as "description",
         'BASELINE' as "type",
         '<< Flyway Baseline >>' as "script",
         NULL as "checksum",
         'root' as "installed_by",
         CURRENT_TIMESTAMP as "installed_on",
         0 as "execution_time",
         TRUE as "success";
CREATE INDEX `flyway_schema_history_s_idx` ON `flyway_schema_history` (`success`);
CREATE TABLE ddl_tools.DATABASECHANGELOG (ID VARCHAR(255) NOT NULL, AUTHOR VARCHAR(255) NOT NULL, FILENAME VARCHAR(255) NOT NULL, DATEEXECUTED datetime NOT NULL, ORDEREXECUTED INT NOT NULL, EXECTYPE VARCHAR(10) NOT NULL, MD5SUM VARCHAR(35) NULL, TAG VARCHAR(255) NULL);
ALTER TABLE ddl_tools.DATABASECHANGELOG ADD LABELS VARCHAR(255) NULL, ADD (X INT NULL, Y INT);
CREATE TABLE IF NOT EXISTS wp_options (
	option_id bigint(20) unsigned NOT NULL auto_increment,
	option_name varchar(191) NOT NULL default '',
	option_value longtext NOT NULL,
	autoload varchar(20) NOT NULL default 'yes',
	PRIMARY KEY  (option_id),
	UNIQUE KEY option_name (option_name),
	KEY autoload (autoload)
) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci;
ALTER TABLE wp_options CHANGE COLUMN `autoload` autoload varchar(30) NOT NULL default 'no';
ALTER TABLE `wp_options` ADD `x` INT NULL DEFAULT NULL AFTER `option_name`, ADD `y` VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german1_ci NOT NULL DEFAULT 'ä' COMMENT 'phpMyAdmin', ADD UNIQUE `ux` (`x`);
ALTER TABLE `wp_options` CHANGE `x` `x2` BIGINT(20) UNSIGNED NULL DEFAULT '5', DROP `y`;
ALTER TABLE `ddl_tools`.`wp_options` 
CHANGE COLUMN `x2` `x3` DECIMAL(10,2) NULL DEFAULT '5.00' ,
ADD COLUMN `wb` VARCHAR(45) NULL AFTER `x3`,
ADD UNIQUE INDEX `x3_UNIQUE` (`x3` ASC) ,
DROP PRIMARY KEY,
ADD PRIMARY KEY (`option_id`, `option_name`);
CREATE TABLE sbtest1(id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT '0' NOT NULL, c CHAR(120) DEFAULT '' NOT NULL, pad CHAR(60) DEFAULT '' NOT NULL, PRIMARY KEY (id)) /*! ENGINE = innodb */;
CREATE INDEX k_1 ON sbtest1(k);
CREATE TABLE p (id int not null, d date not null, primary key (id, d)) PARTITION BY RANGE (TO_DAYS(d)) (PARTITION p0 VALUES LESS THAN (TO_DAYS('2020-01-01')), PARTITION pm VALUES LESS THAN MAXVALUE);
ALTER TABLE p REORGANIZE PARTITION pm INTO (PARTITION p1 VALUES LESS THAN (TO_DAYS('2021-01-01')), PARTITION pm VALUES LESS THAN MAXVALUE);
ALTER TABLE p REBUILD PARTITION ALL;
ALTER TABLE p ANALYZE PARTITION p0;
CREATE TABLE ctas ENGINE=InnoDB SELECT id, d FROM p;
CREATE TABLE ctas2 (PRIMARY KEY (id)) AS SELECT id, d FROM p;
ALTER TABLE sbtest1 ADD COLUMN extra INT, ALGORITHM=INSTANT;
ALTER TABLE sbtest1 DROP COLUMN extra, ALGORITHM=INSTANT;
ALTER TABLE sbtest1 ADD COLUMN f1 INT FIRST, ALGORITHM=DEFAULT, LOCK=DEFAULT;
ALTER TABLE sbtest1 RENAME COLUMN f1 TO f2, RENAME INDEX k_1 TO k_2;
ALTER TABLE sbtest1 COMMENT = 'x', AUTO_INCREMENT 77 ENGINE InnoDB ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8;
ALTER TABLE sbtest1 ENGINE=InnoDB, FORCE;
ALTER TABLE sbtest1 CONVERT TO CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci;
ALTER TABLE sbtest1 DEFAULT CHARACTER SET = latin1, DEFAULT COLLATE = latin1_swedish_ci;
ALTER TABLE sbtest1 MODIFY COLUMN `k` int(11) NOT NULL DEFAULT '0' COMMENT 'a' FIRST, MODIFY pad varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '' AFTER id;
CREATE OR REPLACE TABLE sbtest1 (id int primary key, v varchar(9));
CREATE OR REPLACE VIEW vv AS SELECT * FROM sbtest1;
CREATE SEQUENCE sq START WITH 1 INCREMENT BY 1;
ALTER SEQUENCE sq RESTART 5;
CREATE TABLE sq_user (id int default nextval(sq) primary key, x int);
DROP SEQUENCE sq;
CREATE TABLE wo (id int, s date, e date, period for app(s,e), primary key(id, app without overlaps));
ALTER TABLE wo ADD COLUMN z int;
ALTER TABLE wo DROP PERIOD FOR app;
CREATE TABLE per (id int primary key, s date not null, e date not null);
ALTER TABLE per ADD PERIOD FOR app(s,e);
CREATE TABLE sv (x INT) WITH SYSTEM VERSIONING;
ALTER TABLE sv ADD COLUMN y int;
ALTER TABLE sv PARTITION BY SYSTEM_TIME INTERVAL 1 MONTH PARTITIONS 3;
ALTER TABLE sv REMOVE PARTITIONING, DROP SYSTEM VERSIONING;
CREATE TABLE sv2 (x INT, rs TIMESTAMP(6) GENERATED ALWAYS AS ROW START, re TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME(rs, re)) WITH SYSTEM VERSIONING;
SET SESSION system_versioning_alter_history=KEEP;
ALTER TABLE sv2 ADD COLUMN y int;
CREATE TABLE sv3 (id int primary key, x int);
ALTER TABLE sv3 ADD COLUMN rs TIMESTAMP(6) GENERATED ALWAYS AS ROW START, ADD COLUMN re TIMESTAMP(6) GENERATED ALWAYS AS ROW END, ADD PERIOD FOR SYSTEM_TIME(rs, re), ADD SYSTEM VERSIONING;
ALTER TABLE sv3 DROP SYSTEM VERSIONING;
ALTER TABLE sv3 DROP COLUMN rs, DROP COLUMN re, DROP PERIOD FOR SYSTEM_TIME;
CREATE TABLE fi (id int primary key, a varchar(20), KEY ((lower(a))), KEY ((cast(a as unsigned))), j json, KEY mv ((CAST(j->'$.x' AS UNSIGNED ARRAY))));
ALTER TABLE fi ADD COLUMN g varchar(30) GENERATED ALWAYS AS (json_unquote(json_extract(j,'$.n'))) STORED NOT NULL, ADD COLUMN h int AS (id) VIRTUAL INVISIBLE;
ALTER TABLE fi ALTER COLUMN a SET INVISIBLE;
ALTER TABLE fi ADD COLUMN ck int CONSTRAINT ckk CHECK (ck > 0) NOT ENFORCED DEFAULT 5 COLUMN_FORMAT DEFAULT;
ALTER TABLE fi ALTER CHECK ckk ENFORCED, DROP CHECK ckk;
ALTER TABLE fi ADD COLUMN dft varchar(36) DEFAULT (uuid());
ALTER TABLE fi ALTER COLUMN ck SET DEFAULT (1+1);
ALTER TABLE fi ADD COLUMN geo POINT SRID 4326 NULL;
CREATE TABLE child (id int primary key, pid int references sbtest1(id) on delete cascade);
DROP TABLE child CASCADE;
DROP TABLE IF EXISTS nope, my RESTRICT;
ALTER TABLE per ADD COLUMN IF NOT EXISTS q int, DROP COLUMN IF EXISTS nope, MODIFY COLUMN IF EXISTS q bigint;
ALTER TABLE per RENAME COLUMN IF EXISTS nope TO nop2;
ALTER TABLE per ADD vcol int AS (id+1) PERSISTENT, ADD INDEX IF NOT EXISTS qi (q) IGNORED;
RENAME TABLE IF EXISTS nope TO nope2, per TO per2;
CREATE TABLE c1 LIKE per2;
CREATE TEMPORARY TABLE c1 (z int);
ALTER TABLE c1 ADD COLUMN zz int;
DROP TEMPORARY TABLE c1;
ALTER TABLE c1 ADD COLUMN zz int;

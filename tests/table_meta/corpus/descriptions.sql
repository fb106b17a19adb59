CREATE TABLE described (id INT PRIMARY KEY COMMENT 'the number', name VARCHAR(20) COMMENT 'it''s a "name"', plain INT) COMMENT='customers of the shop';
CREATE TABLE without_sign (id INT COMMENT 'n') ENGINE=InnoDB COMMENT 'without a sign' ROW_FORMAT=DYNAMIC;
ALTER TABLE described MODIFY name VARCHAR(20) COMMENT 'another text';
ALTER TABLE described MODIFY name VARCHAR(30);
ALTER TABLE described COMMENT='renamed customers', ADD COLUMN added INT COMMENT 'an added one' AFTER id;
ALTER TABLE described COMMENT 'no sign', ALGORITHM=INPLACE;
ALTER TABLE described CHANGE added changed INT NOT NULL COMMENT 'kept where it is' FIRST;
ALTER TABLE described CHANGE id number INT COMMENT 'the number';
ALTER TABLE described ALTER COLUMN plain SET DEFAULT 4, ENGINE=InnoDB;
ALTER TABLE described ADD INDEX by_name (name) COMMENT 'of an index', MODIFY plain INT COMMENT 'a
second line\\ and \'quotes\'';
ALTER TABLE described CONVERT TO CHARACTER SET latin1;
CREATE TABLE copied LIKE described;
ALTER TABLE described COMMENT='';
RENAME TABLE copied TO copied_once_more;
ALTER TABLE without_sign COMMENT='größer 漢字', MODIFY id INT COMMENT 'naïve 漢';
CREATE TABLE parts (id INT COMMENT 'kept') COMMENT='of the table' PARTITION BY HASH (id) (PARTITION p0 COMMENT='of a partition');
ALTER TABLE parts COMMENT='later';
--@ mysql80 mariadb114 mariadb1011
ALTER TABLE without_sign RENAME COLUMN id TO renamed;
--@ all
--@client latin1
CREATE TABLE of_latin1 (id INT COMMENT 'größer') COMMENT='naïve';
ALTER TABLE of_latin1 MODIFY id BIGINT COMMENT 'Übergröße';

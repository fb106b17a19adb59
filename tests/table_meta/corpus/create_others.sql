CREATE TABLE o01 (a date, b time, c time(0), d time(3), e time(6), f datetime, g datetime(1), h datetime(6));
CREATE TABLE o02 (a timestamp null, b timestamp(2) null, c timestamp(6) null default null);
CREATE TABLE o03 (a datetime default current_timestamp, b datetime(3) default now(3) on update now(3), c datetime default localtime on update localtimestamp());
CREATE TABLE o04 (a timestamp not null default current_timestamp on update current_timestamp, b int);
CREATE TABLE o05 (a json, b json not null, c int);
CREATE TABLE o06 (a geometry, b point, c linestring, d polygon, e multipoint, f multilinestring, g multipolygon, h geometrycollection);
CREATE TABLE o07 (a point not null, b int, spatial index (a));
CREATE TABLE o08 (a int, b int generated always as (a + 1) virtual, c int generated always as (a + 2) stored, d int as (a * 2), e int as (a, 3)  comment 'bad');
CREATE TABLE o08 (a int, b int generated always as (a + 1) virtual, c int generated always as (a + 2) stored, d int as (a * 2), e varchar(20) as (concat(a, ', ')) virtual comment 'good');
CREATE TABLE o09 (a int, b int as (a + 1) stored unique, c int as (if(a > 1, (2), 3)) stored primary key);
CREATE TABLE o10 (a int check (a > 0), b int constraint bc check (b in (1, 2, 3)), check (a < b), constraint named check (a <> 7));
CREATE TABLE o11 (id int primary key, p int references o10 (a) on delete set null on update cascade, q int);
CREATE TABLE o12 (id int primary key, p int, constraint fk foreign key (p) references o11 (id) on delete no action on update restrict);
--@ mysql80 mariadb114 mariadb1011
CREATE TABLE o13 (id int, p int, constraint foreign key fkx (p) references o11 (id) match simple on delete set null, index (id));
--@ all
CREATE TABLE o14 (a date default '2020-01-01', b time default '10:00:00', c datetime default '2020-01-01 00:00:00', d year default 2020);

GRANT SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'sluice'@'%';
CREATE TABLE shop.orders (id int PRIMARY KEY AUTO_INCREMENT, status varchar(20) NOT NULL, total decimal(10, 2) NOT NULL);
INSERT INTO shop.orders (status, total) VALUES ('paid', 12.50), ('open', 3.20), ('paid', 99.00);

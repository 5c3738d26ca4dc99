create table people (number integer primary key, name text, grp integer, x real);
insert into people with recursive numbers(i) as (select 1 union all select i + 1 from numbers where i < :count)
  select i, 'some name that is longer than it has to be ' || i, i * 7919 % 1009, i * 0.5 from numbers;
create index by_name on people(name);
select grp, count(*), sum(x), max(name) from people group by grp order by grp;
update people set x = x + 1 where number % 7 = 0;
delete from people where number % 11 = 0;
select count(*), sum(x) from people where name like '%77%';
select * from people where name in (select name from people order by name desc limit 20) order by name;

-- The counters of Weir, and the function that decides on them. Needs PostgreSQL 14 or newer and no extension.
--
-- A role that creates this itself, or owns it, needs nothing more. Any other role of an application needs
--   grant usage on schema "weir" to ROLE;
--   grant select, insert, update, delete on "weir".counters to ROLE;

create schema if not exists "weir";

-- Unlogged: counters are not worth a write to disk, and a database that crashed starts with full budgets. No column
-- but the key has an index and pages are half empty, so that a change stays within its page (heap-only) and the next
-- change there takes away what it left behind. What vacuum has to do is small then, and does not wait.
create unlogged table if not exists "weir".counters (
    key     bytea    not null primary key, -- 16 bytes of identity hash, then the id of the limit
    format  smallint not null,             -- of the columns below; 1
    at      bigint   not null,             -- TokenBucket: µs of the last charge; the windows: index of the window
    used    bigint   not null,             -- TokenBucket: whole tokens of debt; the others: charged in the window
    carry   bigint   not null,             -- TokenBucket: debt below a token, in 1/window; SlidingWindowCounter: charged in the window before
    expires bigint   not null,             -- µs from which on the row may go, because nothing weighs any more
    times   bigint[],                      -- SlidingWindowLog: µs of the charges, oldest first
    costs   bigint[]                       -- and what they were
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.1,
    toast.autovacuum_vacuum_cost_delay = 0
);
alter table "weir".counters alter column times set storage external, alter column costs set storage external;

do $$
begin
    create type "weir".log as (times bigint[], costs bigint[]);
exception when duplicate_object then null;
end
$$;

-- What is created here. A library replaces an older version and leaves a newer one alone.
create or replace function "weir".version() returns int language sql immutable as 'select 1';

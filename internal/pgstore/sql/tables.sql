-- The counters of Weir, and the functions that decide on them. Needs PostgreSQL 14 or newer and no extension.
--
-- A role that creates this itself, or owns it, needs nothing more. Any other role of an application needs
--   grant usage on schema "weir" to ROLE;
--   grant select, insert, update, delete on "weir".counters, "weir".charges, "weir".told to ROLE;

create schema if not exists "weir";

-- Unlogged: counters are not worth a write to disk, and a database that crashed starts with full budgets. No column
-- but the key has an index and pages are half empty, so that a change stays within its page (heap-only) and the next
-- change there takes away what it left behind. What vacuum has to do is small then, and does not wait.
create unlogged table if not exists "weir".counters (
    key     bytea    not null primary key, -- 16 bytes of identity hash, then the id of the limit
    format  smallint not null,             -- of the columns below, and of charges; 1
    at      bigint   not null,             -- of the last charge in µs; FixedWindow, SlidingWindowCounter: index of the window
    used    bigint   not null,             -- charged in the window; TokenBucket: whole tokens of debt; SlidingWindowLog: all of charges
    carry   bigint   not null,             -- TokenBucket: debt below a token, in 1/window; SlidingWindowCounter: charged in the window before
    expires bigint   not null              -- µs from which on the row may go, because nothing weighs any more
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);

-- What a SlidingWindowLog remembers: each charge, and the sum of those before it, so that what was used since any of
-- them is the difference of two numbers. Whoever holds the lock of the counter's row may read and write these.
create unlogged table if not exists "weir".charges (
    key    bytea  not null,
    at     bigint not null, -- µs
    cost   bigint not null,
    before bigint not null,
    constraint charges_key primary key (key, at)
) with (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);

-- What replicas told of a counter after an outage, and when it was last reset. Whoever holds the lock of the counter's row
-- may read and write these.
create unlogged table if not exists "weir".told (
    key     bytea    not null primary key,
    format  smallint not null, -- of the columns below; 1
    round   bigint   not null, -- µs, the one that replicas join; 0 before the first
    reset   bigint   not null, -- µs, of the last reset; 0 before the first
    seen    jsonb    not null, -- for each replica its last push and the round that it joined
    sum     jsonb    not null, -- the state that the round adds up to
    expires bigint   not null  -- µs from which on the row may go
);

-- What is created here. A library replaces an older version and leaves a newer one alone.
create or replace function "weir".version() returns int language sql immutable as 'select 2';

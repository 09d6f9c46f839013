-- step answers takes, or gives back refunds, one entry after the other, each on the state that the former left. The
-- arithmetic is that of package algorithm. Times and waits are in µs.
--
-- keys      the distinct counters in ascending order: in this order their rows are locked
-- charged   false for counters that are only peeked at; those are neither locked nor created
-- entries   five numbers each: callers (0 peeks), enforced references, references, shadow rules, and for a refund the
--           time of its charge
-- refs      six numbers each: place in keys, algorithm, requests, window, capacity, cost of one caller
-- ends      for each shadow rule of each entry its last reference, counted from 1 at the entry's first
-- clock     the time, null for the clock of the database
--
-- granted   for each entry how many callers are admitted, then for each of its shadow rules how many of those it
--           charged; -1 where a state is not understood
-- results   five numbers for each reference: 1 if allowed plus 2 if satisfiable, remaining, retry after, reset after,
--           time of the charge
create or replace function "weir".step(
    refunding boolean, keys bytea[], charged boolean[], entries bigint[], refs bigint[], ends bigint[], clock bigint,
    out now bigint, out granted bigint[], out results bigint[]
) language plpgsql volatile parallel unsafe
-- A plan made while the table was small must not read all of it later, and one plan serves all lengths of arrays.
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
    never constant bigint := 9007199254740991; -- 2^53 - 1
    bucket constant int := 0;
    fixed constant int := 1;
    sliding constant int := 2;
    log constant int := 3;

    -- States by their place in keys.
    stored record;
    known boolean[] := array_fill(true, array[cardinality(keys)]);
    dirty boolean[] := array_fill(false, array[cardinality(keys)]);
    ats bigint[] := array_fill(0::bigint, array[cardinality(keys)]);
    useds bigint[] := ats;
    carries bigint[] := ats;
    expiries bigint[] := ats;

    -- The entry, and where its references and shadow rules begin.
    callers bigint;
    enforced int;
    count int;
    shadows int;
    taken bigint;
    base int := 0;
    answer int := 0;
    shadow int := 0;
    failed boolean;
    grants bigint[]; -- by rule: 1 all enforced ones, then the shadow rules
    -- Its references, aged to now.
    rules int[];
    times_of bigint[];
    aged_at bigint[];
    aged_used bigint[];
    aged_carry bigint[];
    befores bigint[]; -- of the oldest charge in a log that still counts
    rooms bigint[];
    fars boolean[];

    -- The reference.
    r int;
    k int;
    rule int;
    algorithm int;
    requests bigint;
    span bigint;
    capacity bigint;
    cost bigint;
    at bigint;
    used bigint;
    carry bigint;
    before bigint;
    dated bigint;
    far boolean; -- dated more than a window ahead
    t bigint;
    room bigint;
    charge bigint;
    changed boolean;
    debt numeric;
    over bigint;
    ending bigint; -- until the end of the window
    retry bigint;
    reset bigint;
begin
    if refunding then
        perform from "weir".counters c where c.key = any (keys) order by c.key for update;
    else
        -- This locks the rows that are there and changes nothing in them.
        insert into "weir".counters as c (key, format, at, used, carry, expires)
        select u.key, 1, 0, 0, 0, 0 from unnest(keys, charged) u(key, charged) where u.charged
        on conflict (key) do update set format = 1 where false;
    end if;
    -- The clock is read under the locks, so that the charges of a row follow each other in time.
    now := coalesce(clock, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
    for stored in
        select u.place, c.* from unnest(keys) with ordinality u(key, place) join "weir".counters c on c.key = u.key
    loop
        k := stored.place;
        ats[k] := stored.at;
        useds[k] := stored.used;
        carries[k] := stored.carry;
        known[k] := stored.format = 1 and stored.at between 0 and never and stored.used >= 0 and stored.carry >= 0;
    end loop;

    granted := array_fill(0::bigint, array[cardinality(entries) / 5 + cardinality(ends)]);
    results := array_fill(0::bigint, array[cardinality(refs) / 6 * 5]);
    for entry in 0 .. cardinality(entries) / 5 - 1 loop
        callers := entries[entry * 5 + 1];
        enforced := entries[entry * 5 + 2];
        count := entries[entry * 5 + 3];
        shadows := entries[entry * 5 + 4];
        taken := entries[entry * 5 + 5];
        grants := array_fill(callers, array[shadows + 1]);
        rule := 1;

        for ref in 1 .. count loop
            r := (base + ref - 1) * 6;
            k := refs[r + 1];
            algorithm := refs[r + 2];
            requests := refs[r + 3];
            span := refs[r + 4];
            capacity := refs[r + 5];
            cost := refs[r + 6];
            if ref > enforced then
                if rule = 1 then
                    rule := 2;
                end if;
                while ref > ends[shadow + rule - 1] loop
                    rule := rule + 1;
                end loop;
            end if;
            at := ats[k];
            used := useds[k];
            carry := carries[k];
            before := 0;

            if algorithm = bucket then
                dated := at;
                known[k] := known[k] and used <= 2147483648 and carry < span;
            elsif algorithm < log then
                known[k] := known[k] and at <= never / span;
                dated := least(at, never / span) * span;
                if refunding and taken / span = at then
                    used := greatest(0, used - cost);
                elsif refunding and taken / span = at - 1 then
                    carry := greatest(0, carry - cost);
                end if;
            else
                if refunding then
                    update "weir".charges c set cost = c.cost - cost
                    where c.key = keys[k] and c.at = taken returning least(cost, c.cost + cost) into over;
                    if found then
                        delete from "weir".charges c where c.key = keys[k] and c.at = taken and c.cost <= 0;
                        update "weir".charges c set before = c.before - over where c.key = keys[k] and c.at > taken;
                        used := used - over;
                        at := coalesce((select max(c.at) from "weir".charges c where c.key = keys[k]), 0);
                    end if;
                end if;
                dated := at;
            end if;

            -- A state that is dated up to one window ahead is judged at its own date. One further ahead was written
            -- before the clock was set back: it is judged as if dated now, and keeps what was used.
            t := now;
            if dated > now and dated - now <= span then
                t := dated;
            end if;

            if algorithm = bucket then
                if t > at and requests > 0 and (used > 0 or carry > 0) then
                    debt := greatest(0, used::numeric * span + carry - requests::numeric * (t - at));
                    used := div(debt, span);
                    carry := mod(debt, span);
                end if;
                if refunding then
                    debt := greatest(0, cost::numeric * span - requests::numeric * greatest(0, t - taken));
                    debt := greatest(0, used::numeric * span + carry - debt);
                    used := div(debt, span);
                    carry := mod(debt, span);
                end if;
                at := t;
                room := 0;
                if requests > 0 then
                    room := capacity - used - (carry > 0)::int;
                end if;
            elsif algorithm = fixed then
                if at < t / span then
                    used := 0;
                end if;
                at := t / span;
                room := requests - used;
            elsif algorithm = sliding then
                if at < t / span - 1 then
                    used := 0;
                    carry := 0;
                elsif at = t / span - 1 then
                    carry := used;
                    used := 0;
                end if;
                at := t / span;
                room := requests - used;
                if carry > 0 then
                    room := room - div(carry::numeric * (span - t % span) + span - 1, span);
                end if;
            elsif used > 0 then
                select c.before into before from "weir".charges c
                where c.key = keys[k] and c.at > greatest(dated, t) - span order by c.at limit 1;
                known[k] := known[k] and (found or dated <= greatest(dated, t) - span);
                before := coalesce(before, used);
                used := used - before;
                known[k] := known[k] and used >= 0;
                room := requests - used;
            else
                room := requests;
            end if;

            far := dated - now > span;
            if count > 1 then
                rules[ref] := rule;
                times_of[ref] := t;
                fars[ref] := far;
                aged_at[ref] := at;
                aged_used[ref] := used;
                aged_carry[ref] := carry;
                befores[ref] := before;
                rooms[ref] := room;
            end if;
            if (known[k] and room is not null) is not true then
                grants[rule] := -1;
            elsif grants[rule] > 0 and room < grants[rule] * cost then
                grants[rule] := greatest(room, 0) / cost;
            end if;
        end loop;

        failed := grants[1] < 0;
        granted[answer + 1] := grants[1];
        for rule in 2 .. shadows + 1 loop
            grants[rule] := least(grants[rule], greatest(grants[1], 0));
            granted[answer + rule] := grants[rule];
        end loop;

        for ref in 1 .. count loop
            r := (base + ref - 1) * 6;
            if count > 1 then -- a lone reference is still at hand
                rule := rules[ref];
                k := refs[r + 1];
                algorithm := refs[r + 2];
                requests := refs[r + 3];
                span := refs[r + 4];
                capacity := refs[r + 5];
                cost := refs[r + 6];
                t := times_of[ref];
                far := fars[ref];
                at := aged_at[ref];
                used := aged_used[ref];
                carry := aged_carry[ref];
                before := befores[ref];
                room := rooms[ref];
            end if;
            if failed or grants[rule] < 0 then
                continue;
            end if;
            charge := grants[rule] * cost;
            room := room - charge;
            used := used + charge;
            changed := charge > 0 or refunding or callers > 0 and far;

            reset := 0;
            if algorithm = bucket then
                if used > 0 or carry > 0 then
                    reset := never;
                    if requests > 0 then
                        reset := least(never, div(used::numeric * span + carry + requests - 1, requests));
                    end if;
                end if;
            elsif algorithm < log then
                ending := span - t % span;
                if used > 0 then
                    reset := ending;
                    if algorithm = sliding then
                        reset := ending + span;
                    end if;
                elsif carry > 0 then
                    reset := ending;
                end if;
            else
                if far or used = charge then -- the log begins anew
                    before := 0;
                    if changed then
                        delete from "weir".charges c where c.key = keys[k];
                    end if;
                elsif changed and before > 0 then
                    delete from "weir".charges c where c.key = keys[k] and c.at <= t - span;
                end if;
                if changed then
                    over := charge;
                    if far then
                        over := used;
                    end if;
                    if over > 0 then
                        insert into "weir".charges as c (key, at, cost, before)
                        values (keys[k], t, over, before + used - over)
                        on conflict on constraint charges_key do update set cost = c.cost + excluded.cost;
                        at := t;
                    end if;
                end if;
                if used > 0 then
                    reset := span;
                    if not far then
                        reset := at + span - t;
                    end if;
                end if;
            end if;
            if reset > 0 then
                reset := least(never, reset + t - now);
            end if;

            r := (base + ref - 1) * 5;
            retry := 0;
            if cost <= room then
                results[r + 1] := 3;
            elsif cost > capacity then
                retry := never;
            else
                results[r + 1] := 2;
                if algorithm = bucket then
                    retry := least(never, div((used + cost - capacity)::numeric * span + carry + requests - 1, requests));
                elsif algorithm = fixed then
                    retry := ending;
                elsif algorithm = sliding then
                    over := requests - used - cost;
                    if over >= 0 then
                        retry := ending - div(over::numeric * span, carry);
                    else
                        retry := ending + span - div((requests - cost)::numeric * span, used);
                    end if;
                elsif far then
                    retry := span;
                else
                    over := used + cost - requests;
                    select c.at + span - t into retry from "weir".charges c
                    where c.key = keys[k] and c.at > t - span and c.before + c.cost >= before + over order by c.at limit 1;
                    retry := coalesce(retry, never);
                end if;
                retry := least(never, retry + t - now);
            end if;
            results[r + 2] := greatest(room, 0);
            results[r + 3] := retry;
            results[r + 4] := reset;
            results[r + 5] := t;

            if changed then
                dirty[k] := true;
                ats[k] := 0;
                useds[k] := 0;
                carries[k] := carry;
                if used > 0 or carry > 0 then
                    ats[k] := at;
                    useds[k] := used;
                    if algorithm = log then
                        useds[k] := before + used;
                    end if;
                end if;
                expiries[k] := now + (reset + 999) / 1000 * 1000 + 1000;
            end if;
        end loop;
        base := base + count;
        shadow := shadow + shadows;
        answer := answer + 1 + shadows;
    end loop;

    update "weir".counters c
    set at = u.at, used = u.used, carry = u.carry, expires = u.expires
    from unnest(keys, dirty, ats, useds, carries, expiries) u(key, dirty, at, used, carry, expires)
    where u.dirty and c.key = u.key;
end
$$;

-- reset deletes counters and remembers when, so that nobody fills them with what was charged before.
create or replace function "weir".reset(keys bytea[], clock bigint) returns void language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    now constant bigint := coalesce(clock, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
begin
    perform from "weir".counters c where c.key = any (keys) order by c.key for update;
    delete from "weir".charges c where c.key = any (keys);
    delete from "weir".counters c where c.key = any (keys);
    insert into "weir".told (key, format, round, reset, seen, sum, expires)
    select u.key, 1, 0, now, '{}', '{}', now + 3600000000 from unnest(keys) u(key) order by u.key
    on conflict (key) do update
    set format = 1, round = 0, reset = excluded.reset, seen = '{}', sum = '{}', expires = excluded.expires;
end
$$;

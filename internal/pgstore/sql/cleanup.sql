-- clean_up deletes, on some pages of the table, the counters on which nothing weighs any more. It goes by place because
-- an index on expires would have to change with every charge. It waits for nobody, and one caller at a time is enough:
-- pages, the size of the table, is null while another is at it.
create or replace function "weir".clean_up(page bigint, count bigint, clock bigint, out pages bigint, out deleted bigint)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_variable
declare
    counters constant regclass := '"weir".counters';
    now constant bigint := coalesce(clock, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
    gone bytea[];
begin
    deleted := 0;
    if not pg_try_advisory_xact_lock(6297555592294694912 + counters::oid::bigint) then -- "Weir" in ASCII, then the table
        return;
    end if;
    pages := pg_relation_size(counters) / current_setting('block_size')::bigint;
    gone := array(
        select c.key from "weir".counters c
        where c.ctid >= format('(%s,0)', page)::tid and c.ctid < format('(%s,0)', page + count)::tid and c.expires <= now
        for update skip locked);
    delete from "weir".charges c where c.key = any (gone);
    delete from "weir".counters c where c.key = any (gone);
    get diagnostics deleted = row_count;
    -- There are few of these: what was told in the last hour.
    if page = 0 then
        delete from "weir".told c where c.key = any (array(
            select c.key from "weir".told c where c.expires <= now for update skip locked));
    end if;
end
$$;

// Package pgstore owns everything that knows PostgreSQL: the table of counters, the function that decides on them, and
// the clean-up. It is for teams that run no Redis.
//
// A Take is one round trip and one statement, however many entries it has: it locks the rows of its counters in the
// order of their keys, decides by the database's clock and writes each row at most once. Nothing is kept in a session,
// so the pool may lead to a PgBouncer in transaction mode, whatever the pool's own query mode is.
package pgstore

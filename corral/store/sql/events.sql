-- name: event_insert
INSERT INTO events (<event>) VALUES (<:event>);

-- name: event_page
SELECT <event> FROM events WHERE run_id = :run_id AND n > :after ORDER BY n LIMIT :limit;

-- On SQLite there is one writer, so numbers are given in the order of commits. On Postgres a row is shown
-- once no transaction older than its own can still commit.
-- name: event_feed
SELECT <event>, /*sqlite 0, *//*pg xid, */ seq FROM events
/*sqlite WHERE seq > :seq ORDER BY seq */
/*pg WHERE (xid, seq) > (:xid, :seq)
    AND xid < CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT)
ORDER BY xid, seq */
LIMIT :limit;

-- On Postgres what is still under way comes after it: its transaction is not older than the oldest.
-- name: event_feed_end
/*sqlite SELECT 0, COALESCE(MAX(seq), 0) FROM events */
/*pg SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) - 1, 999999999999999999 */;

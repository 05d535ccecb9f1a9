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

-- name: segment_put
INSERT INTO segments (<segment>) VALUES (<:segment>)
ON CONFLICT (run_id, attempt, rank, stream, n) DO UPDATE SET
    bytes = excluded.bytes, records = excluded.records, created_at = excluded.created_at;

-- name: segment_mark_run
UPDATE runs SET logged = :logged WHERE id = :run_id AND logged <> :logged;

-- name: segment_all
SELECT <segment> FROM segments WHERE run_id = :run_id AND stream = :stream ORDER BY attempt, rank, n;

-- name: segment_last
SELECT <segment> FROM segments
WHERE run_id = :run_id AND attempt = :attempt AND rank = :rank AND stream = :stream
ORDER BY n DESC LIMIT 1;

-- name: segment_runs_gone
SELECT run_id FROM removed_logs ORDER BY run_id LIMIT :limit;

-- name: segment_run_gone_delete
DELETE FROM removed_logs WHERE run_id = :run_id;

-- name: segment_delete
DELETE FROM segments WHERE run_id = :run_id;

-- name: object_put
INSERT INTO objects (<object>) VALUES (<:object>)
ON CONFLICT (run_id, key) DO UPDATE SET
    etag = excluded.etag, body = excluded.body, epoch = excluded.epoch, updated_at = excluded.updated_at;

-- name: object_get
SELECT <object> FROM objects WHERE run_id = :run_id AND key = :key;

-- name: object_keys
SELECT key FROM objects
WHERE run_id = :run_id AND key > :after AND key >= :prefix AND key < :beyond ORDER BY key LIMIT :limit;

-- name: object_count
SELECT COUNT(*) FROM objects WHERE run_id = :run_id;

-- name: usage_all
SELECT project, used_s, at FROM usage ORDER BY project;

-- name: usage_put
INSERT INTO usage (project, used_s, at) VALUES (:project, :used_s, :at)
ON CONFLICT (project) DO UPDATE SET used_s = excluded.used_s, at = excluded.at;

-- name: loop_tick
INSERT INTO loops (loop, at) VALUES (:loop, :at) ON CONFLICT (loop) DO UPDATE SET at = excluded.at;

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

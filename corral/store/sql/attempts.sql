-- name: attempt_insert
INSERT INTO attempts (<attempt>) VALUES (<:attempt>);

-- name: attempt_close
UPDATE attempts SET closed_at = :at WHERE run_id = :run_id AND number = :number AND closed_at IS NULL;

-- name: attempt_of_run
SELECT <attempt> FROM attempts WHERE run_id = :run_id ORDER BY number;

-- name: rank_insert
INSERT INTO ranks (<rank>) VALUES (<:rank>);

-- name: rank_get
SELECT <rank> FROM ranks WHERE run_id = :run_id AND attempt = :attempt AND rank = :rank;

-- name: rank_all
SELECT <rank> FROM ranks WHERE run_id = :run_id AND attempt = :attempt ORDER BY rank;

-- name: rank_save
UPDATE ranks SET state = :state, epoch = :epoch, lease_id = :lease_id, reason = :reason,
    exit_code = :exit_code
WHERE run_id = :run_id AND attempt = :attempt AND rank = :rank;

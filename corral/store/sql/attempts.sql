-- name: attempt_insert
INSERT INTO attempts (<attempt>) VALUES (<:attempt>);

-- name: attempt_close
UPDATE attempts SET closed_at = :at WHERE run_id = :run_id AND number = :number AND closed_at IS NULL;

-- name: attempt_reopen
UPDATE attempts SET closed_at = NULL WHERE run_id = :run_id AND number = :number;

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
    exit_code = :exit_code, restarts = :restarts
WHERE run_id = :run_id AND attempt = :attempt AND rank = :rank;

-- name: rank_unstarted
SELECT <k.rank> FROM runs AS r /*sqlite INDEXED BY runs_elastic */
JOIN ranks AS k ON k.run_id = r.id AND k.attempt = r.attempt
WHERE r.state = 'running' AND r.elastic = 1 AND k.state IN ('waiting', 'ended')
ORDER BY k.run_id, k.rank LIMIT :limit;

-- name: artifact_insert
INSERT INTO artifacts (<artifact>) VALUES (<:artifact>);

-- name: artifact_files_insert
INSERT INTO artifact_files (artifact_id, path, digest, size, mode)
/*sqlite
SELECT :artifact_id, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]')
FROM json_each(:files)
*/
/*pg
SELECT :artifact_id, f.value ->> 0, f.value ->> 1, CAST(f.value ->> 2 AS BIGINT), CAST(f.value ->> 3 AS BIGINT)
FROM json_array_elements(CAST(:files AS JSON)) AS f
*/;

-- name: artifact_get
SELECT <artifact> FROM artifacts WHERE id = :id;

-- name: artifact_by_digest
SELECT <artifact> FROM artifacts
WHERE project = :project AND kind = :kind AND digest = :digest AND run_id IS NULL
ORDER BY created_at, id LIMIT 1;

-- name: artifact_files
SELECT <artifact_file> FROM artifact_files WHERE artifact_id = :artifact_id AND path > :after
ORDER BY path LIMIT :limit;

-- name: artifact_has
SELECT 1 FROM artifact_files WHERE artifact_id = :artifact_id AND path = :path
UNION ALL SELECT 1 FROM artifact_files WHERE artifact_id = :artifact_id AND path > :low AND path < :high
LIMIT 1;

-- name: artifact_of_run
SELECT <artifact> FROM artifacts WHERE run_id = :run_id ORDER BY created_at, id;

-- name: artifact_page
SELECT <artifact> FROM artifacts
WHERE (created_at, id) < (:after_created_at, :after_id)
    /*if project AND project = :project */
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: artifact_named
SELECT DISTINCT digest FROM artifact_files
WHERE digest IN (<list digests>) AND artifact_id IN (<list artifact_ids>);

-- name: artifact_naming
SELECT f.artifact_id, f.path, a.run_id FROM artifact_files AS f JOIN artifacts AS a ON a.id = f.artifact_id
WHERE f.digest = :digest AND a.project = :project ORDER BY f.artifact_id, f.path LIMIT :limit;

-- Epochs only rise, so they order checkpoints even if the clock was set back.
-- name: artifact_newest_checkpoint
SELECT <artifact> FROM artifacts WHERE run_id = :run_id AND kind = 'checkpoint'
ORDER BY epoch DESC, created_at DESC, step DESC, id DESC LIMIT 1;

-- name: artifact_newest_checkpoint_of_rank
SELECT <artifact> FROM artifacts WHERE run_id = :run_id AND rank = :rank AND kind = 'checkpoint'
ORDER BY epoch DESC, created_at DESC, step DESC, id DESC LIMIT 1;

-- name: artifact_set_pinned
UPDATE artifacts SET pinned = :pinned WHERE id = :id;

-- name: artifact_digests
SELECT DISTINCT digest FROM artifact_files WHERE artifact_id = :id;

-- name: artifact_files_delete
DELETE FROM artifact_files WHERE artifact_id = :id;

-- name: artifact_uses_delete
DELETE FROM run_inputs WHERE artifact_id = :id;

-- name: artifact_delete
DELETE FROM artifacts WHERE id = :id;

-- name: artifact_unused_uploads
SELECT a.id FROM artifacts AS a
WHERE a.run_id IS NULL AND a.kind IN ('code', 'input') AND a.pinned = 0 AND a.created_at < :before
    AND NOT EXISTS (
        SELECT 1 FROM run_inputs AS i JOIN runs AS r ON r.id = i.run_id WHERE i.artifact_id = a.id
    )
    AND NOT EXISTS (
        SELECT 1 FROM run_inputs AS i JOIN schedules AS s ON s.id = i.run_id WHERE i.artifact_id = a.id
    )
    AND NOT EXISTS (
        SELECT 1 FROM run_inputs AS i JOIN endpoints AS e ON e.id = i.run_id WHERE i.artifact_id = a.id
    )
ORDER BY a.created_at, a.id LIMIT :limit;

-- name: artifact_use
INSERT INTO run_inputs (run_id, artifact_id) VALUES (:run_id, :artifact_id) ON CONFLICT DO NOTHING;

-- A schedule or an endpoint counts as a run that reads its artifacts.
-- name: artifact_is_used
SELECT 1 FROM run_inputs WHERE artifact_id = :artifact_id AND run_id <> :but LIMIT 1;

-- name: artifact_used_by
SELECT artifact_id FROM run_inputs WHERE run_id = :run_id ORDER BY artifact_id;

-- name: disk_projects
SELECT project, COUNT(*), SUM(size) FROM blobs WHERE condemned_at IS NULL GROUP BY project ORDER BY project;

-- A blob is loose once something let go of it; the collector looks whether something else holds it.
-- name: disk_loose
SELECT b.project, SUM(b.size) FROM blobs AS b
WHERE b.loose_at IS NOT NULL AND b.condemned_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM pins AS p WHERE p.project = b.project AND p.digest = b.digest)
    AND NOT EXISTS (
        SELECT 1 FROM artifact_files AS f JOIN artifacts AS a ON a.id = f.artifact_id
        WHERE f.digest = b.digest AND a.project = b.project
    )
GROUP BY b.project;

-- name: disk_artifacts
SELECT project, kind, COUNT(*), SUM(bytes) FROM artifacts GROUP BY project, kind ORDER BY project, kind;

-- Logs of runs that were removed have no project any more, and go with the next collection.
-- name: disk_logs
SELECT COALESCE(r.project, ''), s.stream, COUNT(*), SUM(s.bytes)
FROM segments AS s LEFT JOIN runs AS r ON r.id = s.run_id
GROUP BY COALESCE(r.project, ''), s.stream ORDER BY 1, 2;

-- name: disk_runs
SELECT run_id, SUM(bytes) FROM (
    SELECT run_id, bytes FROM artifacts WHERE run_id IS NOT NULL
    UNION ALL SELECT run_id, bytes FROM segments
) AS taken GROUP BY run_id ORDER BY 2 DESC, run_id LIMIT :limit;

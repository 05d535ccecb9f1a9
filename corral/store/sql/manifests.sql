-- name: manifest_get
SELECT <manifest> FROM manifests WHERE project = :project AND name = :name;

-- name: manifest_lock
SELECT <manifest> FROM manifests WHERE project = :project AND name = :name /*lock FOR UPDATE */;

-- name: manifest_claim
INSERT INTO manifests (<manifest>) VALUES (<:manifest>) ON CONFLICT DO NOTHING;

-- name: manifest_put
INSERT INTO manifests (<manifest>) VALUES (<:manifest>)
ON CONFLICT (project, name) DO UPDATE SET
    body = excluded.body, digest = excluded.digest, revision = excluded.revision,
    applied_at = excluded.applied_at, applied_by = excluded.applied_by;

-- name: manifest_page
SELECT <manifest> FROM manifests WHERE (project, name) > (:project, :name)
ORDER BY project, name LIMIT :limit;

-- name: manifest_delete
DELETE FROM manifests WHERE project = :project AND name = :name;

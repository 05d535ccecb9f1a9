-- name: volume_insert
INSERT INTO volumes (<volume>) VALUES (<:volume>) ON CONFLICT (project, name) DO NOTHING;

-- name: volume_get
SELECT <volume> FROM volumes WHERE project = :project AND name = :name;

-- name: volume_lock
SELECT <volume> FROM volumes WHERE project = :project AND name = :name /*lock FOR UPDATE */;

-- name: volume_set_head
UPDATE volumes SET head = :head WHERE project = :project AND name = :name;

-- name: volume_page
SELECT <volume> FROM volumes WHERE (project, name) > (:last_project, :last)
    /*if project AND project = :project */
ORDER BY project, name LIMIT :limit;

-- name: volume_delete
DELETE FROM volumes WHERE project = :project AND name = :name;

-- name: volume_versions_delete
DELETE FROM volume_versions WHERE project = :project AND name = :name;

-- name: volume_version_insert
INSERT INTO volume_versions (<volume_version>) VALUES (<:volume_version>);

-- name: volume_version_get
SELECT <volume_version> FROM volume_versions
WHERE project = :project AND name = :name AND version = :version;

-- name: volume_version_all
SELECT <volume_version> FROM volume_versions WHERE project = :project AND name = :name ORDER BY version DESC;

-- name: volume_version_delete
DELETE FROM volume_versions WHERE project = :project AND name = :name AND version = :version;

-- Versions are numbered without gaps at the newer end, so the newest are counted from the head.
-- name: volume_surplus
SELECT <v.volume_version> FROM volume_versions AS v
JOIN volumes AS o ON o.project = v.project AND o.name = v.name
WHERE v.version <= o.head - :keep AND v.created_at < :before
ORDER BY v.project, v.name, v.version LIMIT :limit;

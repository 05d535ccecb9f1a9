-- Lists travel as one JSON text: the statement stays the same however long they are.

-- name: blob_get
SELECT <blob> FROM blobs WHERE project = :project AND digest = :digest;

-- name: blob_put
INSERT INTO blobs (<blob>, loose_at) VALUES (<:blob>, :created_at) ON CONFLICT DO NOTHING;

-- Shared locks, so that collection cannot condemn them before this transaction has named them.
-- name: blob_present
SELECT digest, size FROM blobs
WHERE project = :project AND condemned_at IS NULL AND digest IN (<list digests>) /*lock FOR SHARE */;

-- name: blob_pin
INSERT INTO pins (project, digest, holder, expires_at)
SELECT project, digest, :holder, /*sqlite :expires_at *//*pg CAST(:expires_at AS DOUBLE PRECISION) */
FROM blobs
WHERE project = :project AND condemned_at IS NULL AND digest IN (<list digests>) /*lock FOR SHARE */
ON CONFLICT (project, digest, holder) DO UPDATE SET expires_at = CASE
    WHEN pins.expires_at IS NULL OR excluded.expires_at IS NULL THEN NULL
    WHEN pins.expires_at > excluded.expires_at THEN pins.expires_at
    ELSE excluded.expires_at END;

-- name: pin_of_holder
SELECT project, digest FROM pins WHERE holder = :holder;

-- name: pin_of_these
SELECT digest FROM pins WHERE holder = :holder AND project = :project AND digest IN (<list digests>);

-- name: pins_until
UPDATE pins SET expires_at = /*sqlite :at *//*pg CAST(:at AS DOUBLE PRECISION) */ WHERE holder = :holder;

-- name: unpin
DELETE FROM pins WHERE holder = :holder;

-- name: unpin_passing
DELETE FROM pins
WHERE project = :project AND digest = :digest AND holder = :holder AND expires_at IS NOT NULL;

-- name: pin_expired
SELECT project, digest, holder FROM pins
WHERE expires_at IS NOT NULL AND expires_at <= :now ORDER BY expires_at LIMIT :limit;

-- name: pin_delete
DELETE FROM pins WHERE project = :project AND digest = :digest AND holder = :holder
    AND expires_at IS NOT NULL AND expires_at <= :now;

-- Writes even a row that is loose already: collection may be about to tighten it.
-- name: blob_loosen
UPDATE blobs SET loose_at = created_at WHERE project = :project AND digest IN (<list digests>);

-- Locked in a statement of its own: the next one then sees every pin that came before the lock.
-- name: blob_loose
SELECT project, digest FROM blobs
WHERE loose_at IS NOT NULL AND loose_at < :older_than AND condemned_at IS NULL
ORDER BY loose_at LIMIT :limit /*lock FOR UPDATE SKIP LOCKED */;

-- name: blob_held
SELECT 1 WHERE EXISTS (SELECT 1 FROM pins WHERE project = :project AND digest = :digest)
    OR EXISTS (
        SELECT 1 FROM artifact_files AS f JOIN artifacts AS a ON a.id = f.artifact_id
        WHERE f.digest = :digest AND a.project = :project
    );

-- name: blob_tighten
UPDATE blobs SET loose_at = NULL WHERE project = :project AND digest = :digest;

-- name: blob_condemn
UPDATE blobs SET condemned_at = :now WHERE project = :project AND digest = :digest;

-- name: blob_condemned
SELECT <blob> FROM blobs WHERE condemned_at IS NOT NULL ORDER BY condemned_at LIMIT :limit;

-- name: blob_drop
DELETE FROM blobs WHERE project = :project AND digest = :digest AND condemned_at IS NOT NULL;

-- name: blob_elsewhere
SELECT 1 FROM blobs WHERE digest = :digest LIMIT 1;

-- name: blob_anywhere
SELECT 1 FROM blobs WHERE digest = :digest AND condemned_at IS NULL LIMIT 1;

-- name: blob_condemned_anywhere
SELECT 1 FROM blobs WHERE digest = :digest AND condemned_at IS NOT NULL LIMIT 1;

-- name: blob_page
SELECT <blob> FROM blobs WHERE (project, digest) > (:after_project, :after_digest)
ORDER BY project, digest LIMIT :limit;

-- name: blob_lock_project
SELECT 1 /*lock , pg_advisory_xact_lock(hashtextextended('corral:bytes:' || CAST(:project AS TEXT), 0)) */;

-- name: project_bytes_get
SELECT bytes FROM project_bytes WHERE project = :project;

-- name: project_bytes_put
INSERT INTO project_bytes (project, bytes) VALUES (:project, :bytes)
ON CONFLICT (project) DO UPDATE SET bytes = excluded.bytes;

-- Runs before the blob is put: a kept count grows by the size of a blob that is new.
-- name: project_bytes_add
UPDATE project_bytes SET bytes = bytes + :size
WHERE project = :project AND NOT EXISTS (SELECT 1 FROM blobs WHERE project = :project AND digest = :digest);

-- Runs before the blob is dropped.
-- name: project_bytes_take
UPDATE project_bytes SET bytes = bytes - (
    SELECT COALESCE(SUM(size), 0) FROM blobs
    WHERE project = :project AND digest = :digest AND condemned_at IS NOT NULL
)
WHERE project = :project;

-- name: blob_project_bytes
SELECT CAST(COALESCE(SUM(size), 0) AS /*sqlite INTEGER*//*pg BIGINT*/) FROM blobs WHERE project = :project;

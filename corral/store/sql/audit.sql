-- name: audit_lock
SELECT 1 /*lock , pg_advisory_xact_lock(:key) */;

-- name: audit_last
SELECT <audit> FROM audit ORDER BY n DESC LIMIT 1;

-- name: audit_append
INSERT INTO audit (<audit>) VALUES (<:audit>);

-- name: audit_after
SELECT <audit> FROM audit WHERE n > :n
    /*if target AND target = :target */ /*if actor AND actor = :actor */ /*if since AND at >= :since */
    /*if action AND (action = :action OR substr(action, 1, length(:family)) = :family) */
ORDER BY n LIMIT :limit;

-- name: audit_before
SELECT <audit> FROM audit WHERE n < :n
    /*if target AND target = :target */ /*if actor AND actor = :actor */ /*if since AND at >= :since */
    /*if action AND (action = :action OR substr(action, 1, length(:family)) = :family) */
ORDER BY n DESC LIMIT :limit;

-- name: audit_last
SELECT <audit> FROM audit ORDER BY n DESC LIMIT 1;

-- name: audit_append
INSERT INTO audit (<audit>) VALUES (<:audit>);

-- name: audit_page
SELECT <audit> FROM audit WHERE n > :after /*if target AND target = :target */ ORDER BY n LIMIT :limit;

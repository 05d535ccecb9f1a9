-- At most one row a minute, however often a host reports.
-- name: host_sample_put
INSERT INTO host_samples (<host_sample>) VALUES (<:host_sample>)
ON CONFLICT (host_id, at) DO UPDATE SET sample = excluded.sample;

-- From each host straight to its last row; a row from after `now` is of a clock that was set back.
-- name: host_sample_newest
SELECT <s.host_sample> FROM hosts AS h CROSS JOIN host_samples AS s
WHERE h.id IN (<list hosts>) AND s.host_id = h.id
    AND s.at = (SELECT MAX(n.at) FROM host_samples AS n WHERE n.host_id = h.id AND n.at <= :now);

-- name: host_sample_page
SELECT <host_sample> FROM host_samples
WHERE host_id = :host_id AND at > :after AND at <= :now ORDER BY at LIMIT :limit;

-- name: host_sample_prune
DELETE FROM host_samples WHERE (host_id, at) IN (
    SELECT host_id, at FROM host_samples WHERE at < :before ORDER BY at LIMIT :limit
);

-- name: host_sample_delete
DELETE FROM host_samples WHERE host_id = :host_id;

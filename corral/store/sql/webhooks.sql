-- name: webhook_insert
INSERT INTO webhooks (<webhook>) VALUES (<:webhook>);

-- name: webhook_get
SELECT <webhook> FROM webhooks WHERE id = :id;

-- name: webhook_by_name
SELECT <webhook> FROM webhooks WHERE name = :name;

-- name: webhook_all
SELECT <webhook> FROM webhooks ORDER BY name;

-- `events` is a JSON list of types.
-- name: webhook_of_calls
SELECT <webhook> FROM webhooks WHERE events LIKE '%"call.%' OR events LIKE '%"*"%' ORDER BY name;

-- Compares the old cursor: if two servers read the same events, only one makes the deliveries.
-- name: webhook_advance
UPDATE webhooks SET cursor = :after WHERE id = :id AND cursor = :before;

-- name: webhook_set_paused
UPDATE webhooks SET paused = :paused WHERE id = :id;

-- name: webhook_set_secret
UPDATE webhooks SET old_secret = secret, old_secret_until = :until, secret = :secret WHERE id = :id;

-- name: webhook_forget_old_secrets
UPDATE webhooks SET old_secret = NULL, old_secret_until = NULL
WHERE old_secret_until IS NOT NULL AND old_secret_until <= :now;

-- name: webhook_delete
DELETE FROM webhooks WHERE id = :id;

-- name: webhook_delete_deliveries
DELETE FROM deliveries WHERE webhook_id = :id;

-- name: delivery_insert
INSERT INTO deliveries (<delivery>) VALUES (<:delivery>);

-- name: delivery_get
SELECT <delivery> FROM deliveries WHERE id = :id;

-- name: delivery_save
UPDATE deliveries SET
    state = :state, attempts = :attempts, next_at = :next_at, status = :status, detail = :detail,
    ended_at = :ended_at
WHERE id = :id;

-- name: delivery_due
SELECT <delivery> FROM deliveries WHERE webhook_id = :webhook_id AND state = 'waiting' AND next_at <= :now
ORDER BY next_at LIMIT :limit;

-- name: delivery_waiting
SELECT COUNT(*) FROM (
    SELECT 1 FROM deliveries WHERE webhook_id = :webhook_id AND state = 'waiting' LIMIT :most
) AS found;

-- name: delivery_page
SELECT <delivery> FROM deliveries WHERE webhook_id = :webhook_id AND (created_at, id) < (:at, :last)
    /*if state AND state = :state */
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: delivery_forget
DELETE FROM deliveries WHERE id IN (
    SELECT id FROM deliveries WHERE ended_at IS NOT NULL AND ended_at < :before LIMIT :limit
);

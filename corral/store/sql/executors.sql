-- name: executor_insert
INSERT INTO executors (<executor>) VALUES (<:executor>);

-- name: executor_get
SELECT <executor> FROM executors WHERE name = :name;

-- name: executor_lock
SELECT <executor> FROM executors WHERE name = :name /*lock FOR UPDATE */;

-- name: executor_all
SELECT <executor> FROM executors ORDER BY name;

-- name: executor_save
UPDATE executors SET options = :options, removed_at = :removed_at WHERE name = :name;

-- name: executor_delete
DELETE FROM executors WHERE name = :name;

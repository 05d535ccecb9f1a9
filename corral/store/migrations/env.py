"""Run by Alembic; the connection comes from `migrate.py`. Migrations only go forward."""

from alembic import context

from corral.store.schema import lock_key

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    if connection.dialect.name == "postgresql":
        # Several servers may start at once.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock_key('schema')})")
    context.run_migrations()

//! Rights of the server's login in its database, and the SQL by which an administrator grants missing ones. No superuser is
//! needed, as managed services have none to give.

use tokio_postgres::Client;

/// Rights that a login lacks, as statements that grant them.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    #[error(
        "role {role} lacks rights in database {database}. Let an administrator of the database run this there, then start again:\n{}",
        sql.join("\n")
    )]
    Missing { role: String, database: String, sql: Vec<String> },
    #[error("asking the database which rights this login has")]
    Query(#[from] tokio_postgres::Error),
}

const LOOK: &str = "select current_user::text, current_database()::text,
        has_database_privilege(current_database(), 'create'), has_database_privilege(current_database(), 'temporary'),
        (select r.rolcreaterole or r.rolsuper from pg_roles r where r.rolname = current_user),
        exists (select from pg_roles r where r.rolname = 'pcfarm_loader'),
        array(select distinct n.nspowner::regrole::text from pg_namespace n
            where n.nspname in ('pcfarm', 'pcfarm_migration', 'pcfarm_write_back') and not pg_has_role(n.nspowner, 'usage'))";

/// Looks, before the schema is made or changed, whether the login may do so.
pub async fn check(client: &Client) -> Result<(), RightsError> {
    let row = client.query_one(LOOK, &[]).await?;
    let login = Login {
        role: row.try_get(0)?,
        database: row.try_get(1)?,
        may_create_schemas: row.try_get(2)?,
        may_create_temporary_tables: row.try_get(3)?,
        may_create_roles: row.try_get(4)?,
        has_loader: row.try_get(5)?,
        foreign_owners: row.try_get(6)?,
    };
    let sql = missing(&login);
    if sql.is_empty() {
        return Ok(());
    }
    Err(RightsError::Missing { role: login.role, database: login.database, sql })
}

#[derive(Debug)]
struct Login {
    role: String,
    database: String,
    may_create_schemas: bool,
    /// Loads stage their problems in one.
    may_create_temporary_tables: bool,
    may_create_roles: bool,
    has_loader: bool,
    /// Quoted names of roles that own our schemas and that the login is no member of.
    foreign_owners: Vec<String>,
}

fn missing(login: &Login) -> Vec<String> {
    let role = quoted(&login.role);
    let mut sql = Vec::new();
    let privileges = [(login.may_create_schemas, "create"), (login.may_create_temporary_tables, "temporary")]
        .map(|(has, name)| (!has).then_some(name));
    let privileges: Vec<&str> = privileges.into_iter().flatten().collect();
    if !privileges.is_empty() {
        sql.push(format!("grant {} on database {} to {role};", privileges.join(", "), quoted(&login.database)));
    }
    if !login.has_loader && !login.may_create_roles {
        sql.push(CREATE_LOADER.to_owned());
    }
    sql.extend(login.foreign_owners.iter().map(|owner| format!("grant {owner} to {role};")));
    sql
}

const CREATE_LOADER: &str = "create role pcfarm_loader nologin;";

/// SQL for an administrator who prepares a server's role and database. One statement a line.
pub fn setup(role: &str, database: &str) -> String {
    let (role, database) = (quoted(role), quoted(database));
    format!(
        "-- For an administrator of the database server: a superuser, or a login with CREATEROLE and CREATEDB.\n\
         -- The server's role needs no attributes. It cannot log in with a password until psql's `\\password {role}` sets one.\n\
         create role {role} login;\n\
         -- The owner of a database must be a role that its creator may act as.\n\
         grant {role} to current_user;\n\
         create database {database} owner {role} encoding 'UTF8' template template0;\n\
         revoke {role} from current_user;\n\
         -- Members may load and watch jobs. One role serves all farms of a database server: leave this out if it exists.\n\
         {CREATE_LOADER}\n\
         -- In place of the database above, for one that exists already:\n\
         --   grant connect, create, temporary on database {database} to {role};\n\
         --   grant connect, temporary on database {database} to pcfarm_loader;   if PUBLIC may not connect\n\
         -- For each job type with a write-back, and each with related reads (choose names and rights):\n\
         --   create role desk_writer nologin;\n\
         --   grant desk_writer to {role};\n\
         --   create role desk_reader login;   and then in psql: \\password desk_reader\n"
    )
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rights_are_named_as_statements() {
        let good = || Login {
            role: "farm".to_owned(),
            database: "Jobs \"1\"".to_owned(),
            may_create_schemas: true,
            may_create_temporary_tables: true,
            may_create_roles: false,
            has_loader: true,
            foreign_owners: Vec::new(),
        };
        assert_eq!(missing(&good()), [""; 0]);
        assert_eq!(missing(&Login { may_create_roles: true, has_loader: false, ..good() }), [""; 0]);
        let bare =
            Login { may_create_schemas: false, has_loader: false, foreign_owners: vec!["dba".to_owned()], ..good() };
        let hardened = Login { may_create_temporary_tables: false, ..good() };
        assert_eq!(missing(&hardened), ["grant temporary on database \"Jobs \"\"1\"\"\" to \"farm\";"]);
        let expected = [
            "grant create on database \"Jobs \"\"1\"\"\" to \"farm\";",
            "create role pcfarm_loader nologin;",
            "grant dba to \"farm\";",
        ];
        assert_eq!(missing(&bare), expected);
        let printed = setup("o'x", "d");
        assert!(
            printed.contains("create role \"o'x\" login;\n") && printed.contains("`\\password \"o'x\"`"),
            "{printed}"
        );
        assert!(!printed.contains("login password"), "a printed password would be one that everybody knows");
    }
}

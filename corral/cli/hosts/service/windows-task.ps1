<#
.SYNOPSIS
    Registers a Scheduled Task that starts the Corral worker with Windows, or removes it.

.DESCRIPTION
    The worker itself needs Linux: it runs inside the WSL distribution that is named here, in which
    `corral host enroll` was done before. Tests first that the worker can run there and that it is enrolled,
    and registers nothing if not. Run it as the user whose WSL it is, in an elevated PowerShell.

.EXAMPLE
    .\windows-task.ps1 -Distribution Ubuntu -Python /opt/corral/bin/python

.EXAMPLE
    .\windows-task.ps1 -Uninstall
#>
[CmdletBinding()]
param(
    [string] $TaskName = 'Corral worker',
    [string] $Distribution = '',
    [string] $Python = 'python3',
    [string] $CorralHome = '',
    [switch] $Uninstall
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

function Stop-IfMissing {
    param([string] $Command)
    if (-not (Get-Command -Name $Command -ErrorAction SilentlyContinue)) {
        throw "$Command was not found: this needs Windows 10 or later with WSL 2 (wsl --install)."
    }
}

function Get-WslArguments {
    param([string[]] $Command)
    $arguments = @()
    if ($Distribution) {
        $arguments += @('--distribution', $Distribution)
    }
    $arguments += @('--exec', '/usr/bin/env')
    if ($CorralHome) {
        $arguments += "CORRAL_HOME=$CorralHome"
    }
    return $arguments + $Command
}

if ($Uninstall) {
    if (Get-ScheduledTask -TaskName $TaskName -ErrorAction SilentlyContinue) {
        Stop-ScheduledTask -TaskName $TaskName
        Unregister-ScheduledTask -TaskName $TaskName -Confirm:$false
        Write-Output "removed the task '$TaskName'; the host's identity stays until 'corral host leave'"
    }
    else {
        Write-Output "there is no task '$TaskName'"
    }
    exit 0
}

Stop-IfMissing -Command 'wsl.exe'
Stop-IfMissing -Command 'Register-ScheduledTask'

foreach ($argument in @($Distribution, $Python, $CorralHome)) {
    if ($argument -match '[\s"]') {
        throw "'$argument' holds a space or a quote, which a task cannot hand on: choose a path without."
    }
}

$selfTest = Get-WslArguments -Command @($Python, '-P', '-m', 'corral.cli.main', 'host', 'status')
& wsl.exe @selfTest
if ($LASTEXITCODE -ne 0) {
    throw "the host is not ready in WSL (exit code $LASTEXITCODE); run 'corral host enroll' there first"
}

$worker = Get-WslArguments -Command @($Python, '-P', '-m', 'corral.worker')
$action = New-ScheduledTaskAction -Execute 'wsl.exe' -Argument ($worker -join ' ')
$trigger = New-ScheduledTaskTrigger -AtLogOn -User $env:USERNAME
$settings = New-ScheduledTaskSettingsSet `
    -AllowStartIfOnBatteries `
    -DontStopIfGoingOnBatteries `
    -StartWhenAvailable `
    -MultipleInstances IgnoreNew `
    -ExecutionTimeLimit ([TimeSpan]::Zero) `
    -RestartCount 999 `
    -RestartInterval (New-TimeSpan -Minutes 1)
$principal = New-ScheduledTaskPrincipal -UserId $env:USERNAME -LogonType Interactive -RunLevel Limited

Register-ScheduledTask -TaskName $TaskName -Action $action -Trigger $trigger -Settings $settings `
    -Principal $principal -Description 'Takes runs from a Corral server.' -Force | Out-Null
Start-ScheduledTask -TaskName $TaskName
Write-Output "registered and started the task '$TaskName'"

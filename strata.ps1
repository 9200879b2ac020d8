# Strata's launcher on Windows: finds a Python and runs the same script as ./strata does elsewhere.
# Untested: nobody has run this file on Windows yet.
$script = Join-Path $PSScriptRoot "strata"
foreach ($version in "3.13", "3.12", "3.11") {
    if (Get-Command py -ErrorAction SilentlyContinue) {
        & py "-$version" -c "" 2>$null
        if ($LASTEXITCODE -eq 0) {
            & py "-$version" $script @args
            exit $LASTEXITCODE
        }
    }
}
if (Get-Command python -ErrorAction SilentlyContinue) {
    & python $script @args
    exit $LASTEXITCODE
}
[Console]::Error.WriteLine("strata: no Python found: install Python 3.13, then run this again")
exit 1
